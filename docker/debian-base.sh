#!/usr/bin/env bash
# Makes a base image from nothing but a Debian mirror, for where no image registry is reachable:
#   docker/debian-base.sh [TAG]        (grpo/base:bookworm), then BASE_IMAGE=grpo/base:bookworm docker/build.sh
# Needs root and debootstrap. DEBIAN_MIRROR names another mirror than debootstrap's own.
set -euo pipefail
tag=${1:-grpo/base:bookworm}
for program in debootstrap docker; do
  command -v "$program" >/dev/null || { echo "debian-base.sh: $program is not installed (apt-get install debootstrap docker.io)" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "debian-base.sh: debootstrap needs root; run it with sudo" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$folder" \
  ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$folder.log" 2>&1 || { tail -20 "$folder.log" >&2; exit 1; }
rm -f "$folder.log"
tar -C "$folder" -c \
  --exclude='./var/cache/apt/archives/*.deb' --exclude='./var/lib/apt/lists/*' --exclude='./var/log/*' \
  --exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' . |
  docker import --change 'CMD ["sh"]' --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' - "$tag"
