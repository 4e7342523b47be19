#!/bin/sh
# Make a folder that apt takes packages from, signed: deploy/deb/repository.sh FOLDER WHEEL KEY [ARCH…]
# KEY: of gpg, its id or its owner's address. ARCH: amd64 and arm64 by default. A web server shows
# the folder, or apt reads it where it lies. Needs what build.sh needs, apt-utils and gnupg.
set -eu
folder=$(realpath -m "$1")
wheel=$(realpath "$2")
key=$3
shift 3
here=$(realpath "$(dirname "$0")")
mkdir -p "$folder"
[ $# -gt 0 ] || set -- amd64 arm64
for arch in "$@"; do ARCH=$arch OUT=$folder "$here/build.sh" "$wheel"; done
cd "$folder"
apt-ftparchive packages . >Packages
gzip --keep --force --best --no-name Packages
apt-ftparchive -o APT::FTPArchive::Release::Origin=swarm-mesh -o APT::FTPArchive::Release::Suite=stable \
  -o "APT::FTPArchive::Release::Architectures=$*" release . >Release.new
mv Release.new Release
gpg --batch --yes --local-user "$key" --clearsign --output InRelease Release
gpg --batch --yes --local-user "$key" --armor --detach-sign --output Release.gpg Release
gpg --batch --yes --export "$key" >swarm-mesh.gpg
