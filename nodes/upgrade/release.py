"""What a release consists of: named files with their hashes, under one version. Pure, but for
reading the files of a folder."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.errors import InvalidArgument

VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,63}")
FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
MOST_FILES = 500
MOST_BYTES = 8 << 30  # of all files
PACKAGE = "swarm_mesh-*.whl"
INSTALL = "install"  # a program of a release that makes its environment, in place of pip
DOCUMENT, SIGNATURE = "release.json", "release.sig"  # beside signed files
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ReleaseFile:
    """sha256: in hexadecimal. size: bytes."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Release:
    """files: by name. extras: of the package, as pip takes them."""

    version: str
    files: Mapping[str, ReleaseFile]
    extras: str = "node"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(each.size for each in self.files.values())

    def to_json(self) -> bytes:
        """The same release has the same bytes."""
        files = {name: [each.sha256, each.size] for name, each in sorted(self.files.items())}
        document = {"v": 1, "version": self.version, "extras": self.extras, "files": files}
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Release:
        """Raises `InvalidArgument`."""
        try:
            document: Any = json.loads(data)
            version, extras = document["version"], document.get("extras", "node")
            given = document["files"].items()
            files = {str(name): ReleaseFile(str(sha), size) for name, (sha, size) in given}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidArgument(f"no document of a release: {error!r:.100}") from None
        if not isinstance(extras, str) or re.fullmatch(r"[a-z,-]{0,100}", extras) is None:
            raise InvalidArgument(f"extras {extras!r:.100} of a release: as node,gateway")
        release = cls(checked_version(version), files, extras)
        release.check()
        return release

    def check(self) -> None:
        """Raises `InvalidArgument` for names, hashes or sizes that no release has."""
        if not 0 < len(self.files) <= MOST_FILES:
            raise InvalidArgument(f"a release of {len(self.files)} files: 1 to {MOST_FILES}")
        for name, each in self.files.items():
            if FILE.fullmatch(name) is None:
                raise InvalidArgument(f"{name!r:.100} is no name for a file of a release")
            if _SHA256.fullmatch(each.sha256) is None or type(each.size) is not int:
                raise InvalidArgument(f"{name}: no SHA-256, or no size")
            if each.size < 0 or self.size > MOST_BYTES:
                raise InvalidArgument(f"{name}: a release has {MOST_BYTES >> 30} GiB at most")


def checked_version(version: object) -> str:
    """Raises `InvalidArgument` for a text that is no release's version."""
    if not isinstance(version, str) or VERSION.fullmatch(version) is None or ".." in version:
        raise InvalidArgument(f"version {version!r:.80}: letters, digits, '.' and '-', as 0.2.0")
    return version


def release_of(folder: Path, version: str = "", extras: str = "node") -> Release:
    """The release of a folder's files. version: "" for that of the package's wheel. Raises
    `InvalidArgument`, `OSError`."""
    if not folder.is_dir():
        raise InvalidArgument(f"{folder} is no folder: give the one with the wheels of a release")
    if not version:
        wheels = [path.name.split("-") for path in folder.glob(PACKAGE)]
        if len(wheels) != 1:
            raise InvalidArgument(f"{folder} has {len(wheels)} files {PACKAGE}: give --version")
        version = wheels[0][1]
    paths = [path for path in sorted(folder.iterdir()) if path.is_file() and is_part(path.name)]
    files = {path.name: ReleaseFile(sha256(path), path.stat().st_size) for path in paths}
    if not files:
        raise InvalidArgument(f"{folder} holds no file: `uv build`, then `pip download` beside it")
    release = Release(checked_version(version), files, extras)
    release.check()
    return release


def is_part(name: str) -> bool:
    """Whether a file of a folder belongs to its release: hidden ones and signatures do not."""
    return not name.startswith(".") and name not in (DOCUMENT, SIGNATURE)


def sha256(path: Path) -> str:
    """The hash of a file, in hexadecimal. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_whole(folder: Path, name: str, wanted: ReleaseFile) -> bool:
    """Whether a file is there, byte for byte. Raises `OSError`."""
    path = folder / name
    if not path.is_file() or path.stat().st_size != wanted.size:
        return False
    return sha256(path) == wanted.sha256
