"""A model version as a folder: its artifacts, and the manifest that describes them.

The dataclasses of the manifest are defined in `shards.schema` and `shards.specs`, and are imported
from here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from shards.errors import ArtifactError
from shards.foreign import foreign
from shards.json_fields import FILE_NAME, check_token
from shards.schema import (
    BATCHING_MODES,
    FORMAT,
    Batching,
    CodecError,
    LighterModel,
    Manifest,
    PartFile,
    SealedFile,
    Shard,
)
from shards.specs import DATATYPES, DTYPES, TensorSpec, spec_of

__all__ = [
    "BATCHING_MODES",
    "DATATYPES",
    "DTYPES",
    "FILE_NAME",
    "FORMAT",
    "Batching",
    "CodecError",
    "LighterModel",
    "Manifest",
    "PartFile",
    "SealedFile",
    "Shard",
    "TensorSpec",
    "check_token",
    "read_dir",
    "rename_version",
    "sha256",
    "spec_of",
    "verify",
    "verify_file",
    "write_dir",
]


def sha256(data: bytes) -> str:
    """SHA-256 in lower-case hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def verify(artifact: bytes | Path, digest: str, title: str) -> bytes:
    """The bytes of an artifact, as it was fetched, if their SHA-256 is `digest`.

    Raises ArtifactError otherwise, which names the artifact by `title`, and `OSError`.
    """
    data = artifact if isinstance(artifact, bytes) else artifact.read_bytes()
    _compare(sha256(data), digest, title)
    return data


def verify_file(path: Path, digest: str, title: str) -> Path:
    """Return `path` if its file's SHA-256 is `digest`; the file is read in parts.

    Raises ArtifactError otherwise, and `OSError`.
    """
    with path.open("rb") as file:
        _compare(hashlib.file_digest(file, "sha256").hexdigest(), digest, title)
    return path


def _compare(actual: str, digest: str, title: str) -> None:
    if actual != digest:
        raise ArtifactError(
            f"{title} has SHA-256 {actual}, the manifest names {digest}: "
            "it was changed or cut short, fetch or push it again"
        )


def write_dir(
    directory: str | os.PathLike[str], manifest: Manifest, files: Mapping[str, bytes]
) -> None:
    """Write a whole version into a new folder. The folder appears complete or not at all.

    `files` are the artifacts by name. Raises ArtifactError when an artifact is missing or changed,
    and when the folder is not empty: versions are immutable.
    """
    target = Path(directory)
    missing = set(manifest.files()) - files.keys()
    if missing:
        raise ArtifactError(f"files missing for {manifest.model}: {', '.join(sorted(missing))}")
    paths = {name: _path_of(files, name) for name in manifest.files()}
    for name, path in paths.items():
        if path is None:
            verify(files[name], manifest.digest(name), name)
        else:
            verify_file(path, manifest.digest(name), name)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ArtifactError(f"{target} exists and is not empty: choose a new folder or version")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        # `mkdtemp` gives the folder to one user only; the service that reads it may be another.
        temporary.chmod(0o755)
        for name, path in paths.items():
            if path is None:
                _write(temporary / name, files[name])
            else:
                _copy(path, temporary / name)
        _write(temporary / FILE_NAME, manifest.to_json())
        os.replace(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def rename_version(directory: str | os.PathLike[str], version: str) -> Manifest:
    """Give the version in a folder another name, before anybody has it. Returns its manifest.

    Raises as `read_dir`, and `ManifestError` for what is no name of a version."""
    check_token("model version", version)
    manifest = replace(read_dir(directory)[0], version=version)
    _write(Path(directory) / FILE_NAME, manifest.to_json())
    return manifest


def read_dir(directory: str | os.PathLike[str]) -> tuple[Manifest, Callable[[str], bytes]]:
    """The manifest of a folder, and a function from a file name to a verified artifact.

    Raises ArtifactError when the folder has no manifest, and ManifestError when the manifest is
    malformed. The function raises ArtifactError for a missing or changed file.
    """
    source = Path(directory)
    try:
        manifest = Manifest.from_json((source / FILE_NAME).read_bytes())
    except OSError as error:
        lacks = f"{source} has no {FILE_NAME}: give a folder that `swarm model split` has written"
        why = (foreign(source) or lacks) if source.exists() else f"{source}: no such folder"
        raise ArtifactError(why) from error

    def fetch(name: str) -> bytes:
        if name not in manifest.files():
            raise ArtifactError(f"{name!r} is not an artifact of {manifest.model}")
        try:
            data = (source / name).read_bytes()
        except OSError as error:
            raise ArtifactError(f"cannot read {source / name}: {error}") from error
        return verify(data, manifest.digest(name), name)

    return manifest, fetch


def _path_of(files: Mapping[str, bytes], name: str) -> Path | None:
    """The file of an artifact that lies on the disk already."""
    path: Callable[[str], Path] | None = getattr(files, "path", None)
    return None if path is None else path(name)


def _copy(source: Path, target: Path) -> None:
    """Copy a file in parts, and wait until it is on the disk."""
    with source.open("rb") as read, target.open("wb") as handle:
        shutil.copyfileobj(read, handle, 1 << 20)
        handle.flush()
        os.fsync(handle.fileno())


def _write(path: Path, data: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
