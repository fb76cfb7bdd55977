#!/bin/sh
# What the Dockerfile's RUN lines call:
#   install.sh pins NAME FLAVOUR   installs what docker/constraints/NAME-FLAVOUR.txt says and is not there yet
#   install.sh wheel FOLDER        builds our wheel from the working directory
#   install.sh package FOLDER      installs it
# Byte-compiles, since the root file system is read-only where an image runs. Nothing is resolved here: the pins were,
# when they were written. A CA bundle comes as a build secret (/run/secrets/ca.pem) and stays in no layer.
set -eu
here=/opt/tools
uv=$here/bin/uv
python=/opt/venv/bin/python3
export UV_LINK_MODE=copy UV_CACHE_DIR=/var/cache/uv UV_HTTP_TIMEOUT=300 UV_NO_CONFIG=1 UV_NO_PROGRESS=1
if [ -s /run/secrets/ca.pem ]; then
  export SSL_CERT_FILE=/run/secrets/ca.pem
fi
case $1 in
  pins)
    set -- "$here/constraints/$2-$3.txt" "$3"
    # torch comes from the folder of wheels where there is one; else the CPU build has an index of its own, and the
    # default index has the CUDA one.
    torch=
    if [ "$2" = cpu ]; then
      torch=--torch-backend=cpu
      if ls "$here"/wheels/torch-*.whl >/dev/null 2>&1; then
        torch=--find-links=$here/wheels
      fi
    fi
    exec "$uv" pip install --no-deps --compile-bytecode --python "$python" ${torch:+"$torch"} -r "$1"
    ;;
  wheel) exec "$uv" build --wheel --out-dir "$2" ;;
  package) exec "$uv" pip install --no-cache --offline --no-deps --compile-bytecode --python "$python" "$2"/*.whl ;;
  *) echo "install.sh: $1 is unknown; write pins, wheel or package" >&2; exit 2 ;;
esac
