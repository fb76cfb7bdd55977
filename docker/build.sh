#!/usr/bin/env bash
# Builds the images: `docker/build.sh [FAMILY...]`, all of them without an argument; `make images` is the same.
#   FLAVOUR         cpu (default) or cuda
#   IMAGE_PREFIX    registry and path of the tags (registry.example.com/grpo, as `resources.images` has it)
#   VERSION         tag (the version in pyproject.toml); the image also gets VERSION-FLAVOUR
#   BASE_IMAGE      a Debian image, with Python 3.11 or without (python:3.11-slim-bookworm)
#   CA_BUNDLE       CA certificates for a package index behind a proxy; a build secret, in no layer
#   PIP_FIND_LINKS  a folder of wheels with a torch for the cpu flavour
#   RUNTIME_PACKAGES, UV_VERSION  the Dockerfile's build arguments
# Ends with the images' sizes.
set -euo pipefail
cd "$(dirname "$0")/.."

FLAVOUR=${FLAVOUR:-cpu}
IMAGE_PREFIX=${IMAGE_PREFIX:-registry.example.com/grpo}
VERSION=${VERSION:-$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)}
REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)
# As pipeline/docker_runner.py computes it.
CODE=$(find components -type f \( -name '*.py' -o -name '*.json' -o -name '*.j2' -o -name '*.html' \) -print0 |
  LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum | cut -d' ' -f1)
families=("$@")
[ ${#families[@]} -gt 0 ] || families=(data train merge evaluate registry mlflow)

fail() { echo "build.sh: $*" >&2; exit 2; }
case $FLAVOUR in cpu | cuda) ;; *) fail "FLAVOUR=$FLAVOUR is unknown; write cpu or cuda" ;; esac
for family in "${families[@]}"; do
  case $family in
    data | train | merge | evaluate | registry | mlflow) ;;
    *) fail "image $family is unknown; known: data train merge evaluate registry mlflow" ;;
  esac
done

# A client that speaks BuildKit: any with buildx, or one from before buildx was needed.
build=()
if docker buildx version >/dev/null 2>&1; then
  build=(docker buildx build --load)
else
  while read -r client; do
    major=$("$client" --version | sed -n 's/^Docker version \([0-9]*\).*/\1/p')
    if [ "${major:-99}" -ge 18 ] && [ "${major:-99}" -lt 23 ]; then
      build=(env DOCKER_BUILDKIT=1 "$client" build)
      break
    fi
  done < <(type -ap docker)
fi
[ ${#build[@]} -gt 0 ] || fail "no docker client with BuildKit is installed; install docker-buildx, or Debian's docker.io"
docker info >/dev/null 2>&1 || fail "the docker daemon does not answer; start it"

options=(--file docker/Dockerfile --build-arg "FLAVOUR=$FLAVOUR" --build-arg "VERSION=$VERSION" --build-arg "REVISION=$REVISION")
options+=(--build-arg "CODE=$CODE")
for name in BASE_IMAGE RUNTIME_PACKAGES UV_VERSION; do
  [ -z "${!name:-}" ] || options+=(--build-arg "$name=${!name}")
done
[ -z "${CA_BUNDLE:-}" ] || options+=(--secret "id=ca,src=$CA_BUNDLE")
if [ "$FLAVOUR" = cpu ] && compgen -G "${PIP_FIND_LINKS:-/nowhere}/torch-*+cpu-cp311-*.whl" >/dev/null; then
  # An imported image costs no build context, and the Dockerfile needs no folder that is not there elsewhere.
  (cd "$PIP_FIND_LINKS" && tar -c --sort=name --mtime=@0 torch-*+cpu-cp311-*.whl) | docker import - grpo/wheels:local >/dev/null
  options+=(--build-arg WHEELS_IMAGE=grpo/wheels:local)
fi

for family in "${families[@]}"; do
  target=(--target step --build-arg "FAMILY=$family")
  [ "$family" != mlflow ] || target=(--target mlflow)
  echo "building $IMAGE_PREFIX/$family:$VERSION ($FLAVOUR) ..."
  "${build[@]}" "${options[@]}" "${target[@]}" \
    --tag "$IMAGE_PREFIX/$family:$VERSION" --tag "$IMAGE_PREFIX/$family:$VERSION-$FLAVOUR" .
done
for family in "${families[@]}"; do
  size=$(docker image inspect --format '{{.Size}}' "$IMAGE_PREFIX/$family:$VERSION")
  printf '%-60s %6d MB\n' "$IMAGE_PREFIX/$family:$VERSION" "$((size / 1000000))"
done
