#!/usr/bin/env bash
# Makes a release in a folder, dist by default: wheel, sdist, SBOM (CycloneDX) of what a node installs, hashes and their
# signature by the key of `swarm keys show`, or of SIGN_WITH. Needs uv, and a registry of packages. With APT_SIGN_WITH,
# a key of gpg, also a repository for apt in the folder's `apt` (deploy/deb/repository.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-dist}
# A folder that this script did not make stays as it is, whatever lies in it.
if [ -e "$folder" ] && [ ! -f "$folder/release.json" ] && [ -n "$(ls -A "$folder")" ]; then
  echo "release.sh: $folder holds something else than a release: name a new folder" >&2
  exit 2
fi
rm -rf "$folder"
uv build --quiet --out-dir "$folder"
rm -f "$folder/.gitignore"
environment=$(mktemp -d)
trap 'rm -rf "$environment"' EXIT
uv venv --quiet "$environment"
uv pip install --quiet --python "$environment/bin/python" "$(ls "$folder"/*.whl)[node]"
uvx --quiet --from 'cyclonedx-bom>=7,<8' cyclonedx-py environment --output-reproducible \
  --pyproject pyproject.toml --output-file "$folder/sbom.cdx.json" "$environment/bin/python"
uv run --quiet swarm release sign "$folder" ${SIGN_WITH:+--key "$SIGN_WITH"}
if [ -n "${APT_SIGN_WITH:-}" ]; then
  deploy/deb/repository.sh "$folder/apt" "$(ls "$folder"/*.whl)" "$APT_SIGN_WITH"
fi
