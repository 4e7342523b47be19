"""A model version as it is pushed encrypted."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import swarm
from shards.manifest import Manifest, SealedFile
from swarm.errors import InvalidArgument, NotFound
from swarm.models.push_claim import same_version
from swarm.security.sealed import CHUNK, ModelKey


async def sealed_version(
    client: swarm.Mesh, manifest: Manifest, files: Mapping[str, Path], key: ModelKey, folder: Path
) -> tuple[Manifest, dict[str, Path]]:
    """The manifest with the hashes of the encrypted files, and these files, in `folder`.

    A version that the mesh has whole already is returned as it lies there, without files: each
    encryption has other bytes. Raises `InvalidArgument` where the mesh has a part of it, or another
    version of this name.
    """
    name, version = manifest.model, manifest.version
    try:
        there = Manifest.from_json(await client.registry.manifest(name, version))
    except NotFound:
        there = None
    if there is not None:
        plain = replace(there, sealed={}).to_json()
        if not there.sealed or not same_version(plain, manifest.to_json()):
            raise InvalidArgument(
                f"{name}@{version} exists and versions are immutable: "
                "split again with another --version"
            )
        if await client.registry.lacking(name, version, there.files()):
            raise InvalidArgument(
                f"the mesh lost files of {name}@{version}, which nobody can encrypt to the same "
                "bytes again: split again with another --version"
            )
        return there, {}
    sealed, hashes = {}, {}
    for file, source in files.items():
        sealed[file] = Path(folder) / file
        hashes[file] = await asyncio.to_thread(_seal, key, source, sealed[file])
    return replace(manifest, sealed=hashes), sealed


def _seal(key: ModelKey, source: Path, target: Path) -> SealedFile:
    digest, size = hashlib.sha256(), 0
    with target.open("xb") as sink:
        for part in key.seal(_parts(source)):
            digest.update(part)
            size += sink.write(part)
    return SealedFile(digest.hexdigest(), size)


def _parts(source: Path) -> Iterator[bytes]:
    with source.open("rb") as file:
        while part := file.read(CHUNK):
            yield part
