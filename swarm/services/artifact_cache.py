"""Files that the nodes of a host and of one user keep: artifacts, and what is made of them.

    FOLDER/artifacts/SHA256        an artifact, as it lies in the object store
    FOLDER/made/KEY/…              files that a node made of an artifact, with their hashes
    FOLDER/parts, FOLDER/locks     what is being written, and who writes it

An entry appears whole, by a rename, or not at all. Its hashes are checked each time that it is
used: a corrupt one is made again. One process makes an entry, and the others wait for it. The
entries that were not used for longest go when there are more bytes than the limit. A file stays
readable for who has it open or mapped.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

LIMIT = 4 << 30  # bytes
LOCK_TIMEOUT = 120.0  # seconds that another process may take to make an entry
LOCK_PAUSE = 0.05  # seconds between attempts at a lock: the kernel has no wait with a timeout
STALE_AFTER = 3600.0  # seconds after which a part was left by a process that ended
HASHES = "hashes.json"

Chunks = Callable[[], AsyncIterator[bytes | memoryview]]


class WrongBytes(ValueError):
    """The bytes that came have another SHA-256 than the entry's name."""


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/swarm`, or `~/.cache/swarm` (XDG Base Directory Specification)."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "swarm"


class ArtifactCache:
    """Files below `folder`, of `limit` bytes at most beside the entry that was used last.

    All methods raise `OSError` where the disk is full or a file cannot be written or read, and
    `TimeoutError`, which is one, where another process does not finish an entry. Call `open` first.
    """

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self.folder = folder
        self.limit = limit
        self._artifacts, self._made = folder / "artifacts", folder / "made"
        self._parts, self._locks = folder / "parts", folder / "locks"

    def open(self) -> None:
        """Make the folder, for this user alone. Raises `PermissionError` for another user's folder,
        or one that others may write to: they could swap a file between its check and its use."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = self.folder.stat()
        if state.st_uid != os.getuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(
                f"{self.folder} belongs to another user or can be written by others: "
                "chmod 700 it, or name another folder"
            )
        for folder in (self._artifacts, self._made, self._parts, self._locks):
            folder.mkdir(mode=0o700, exist_ok=True)
        for part in self._parts.iterdir():
            with suppress(OSError):  # its process may be at work, or have ended just now
                if time.time() - part.stat().st_mtime > STALE_AFTER:
                    _remove(part)

    async def artifact(self, digest: str, chunks: Chunks) -> Path:
        """The file whose SHA-256 is `digest`, from `chunks()` unless it is here already.

        digest: 64 hexadecimal digits. Raises `WrongBytes`, and whatever `chunks` raises.
        """
        path = self._artifacts / digest
        with (self._locks / f"artifact-{digest[:2]}").open("ab") as lock:
            deadline = time.monotonic() + LOCK_TIMEOUT
            while not _take(lock, deadline):  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(LOCK_PAUSE)
            if not await asyncio.to_thread(_has_digest, path, digest):
                await self._write(path, digest, chunks)
        self._used(path)
        return path

    async def _write(self, path: Path, digest: str, chunks: Chunks) -> None:
        # Chunks are small, and go to the system's page cache: a thread for each would cost more.
        handle, name = tempfile.mkstemp(dir=self._parts)
        found = hashlib.sha256()
        try:
            with open(handle, "wb") as sink:  # noqa: ASYNC230
                async for chunk in chunks():
                    found.update(chunk)
                    sink.write(chunk)
            if found.hexdigest() != digest:
                raise WrongBytes(f"SHA-256 {found.hexdigest()} came instead of {digest}")
            os.replace(name, path)
        except BaseException:
            _remove(Path(name))
            raise

    def made(self, key: str, make: Callable[[Path], None]) -> Path:
        """The folder `key`, which `make(folder)` fills unless it is here already. Blocking.

        key: letters and digits. Raises whatever `make` raises.
        """
        path = self._made / key
        with (self._locks / f"made-{key[:2]}").open("ab") as lock:
            deadline = time.monotonic() + LOCK_TIMEOUT
            while not _take(lock, deadline):
                time.sleep(LOCK_PAUSE)
            if not _is_whole(path):
                _remove(path)
                part = Path(tempfile.mkdtemp(dir=self._parts))
                try:
                    make(part)
                    hashes = {file.name: _digest(file) for file in part.iterdir()}
                    (part / HASHES).write_text(json.dumps(hashes))
                    os.replace(part, path)
                except BaseException:
                    _remove(part)
                    raise
        self._used(path)
        return path

    def _used(self, path: Path) -> None:
        """Note that an entry was used; remove those that were not, as far as they are too many."""
        with suppress(FileNotFoundError):  # another process may have removed it just now
            os.utime(path)
        entries = [e for e in self._entries() if e[2] != path]
        left = self.limit - _size(path)
        for _, size, entry in sorted(entries, reverse=True):
            left -= size
            if left < 0:
                _remove(entry)

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """When each entry was used last, its bytes, and its path."""
        for folder in (self._artifacts, self._made):
            for entry in folder.iterdir():
                with suppress(FileNotFoundError):
                    yield entry.stat().st_mtime, _size(entry), entry


def _take(lock: IO[bytes], deadline: float) -> bool:
    """Take a lock, which goes with its file, and with a process that ends. False: it is taken.

    Raises `TimeoutError` after `deadline`.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if time.monotonic() > deadline:
            raise TimeoutError(f"another process holds {lock.name} for too long") from None
        return False
    return True


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _has_digest(path: Path, digest: str) -> bool:
    return path.is_file() and _digest(path) == digest


def _is_whole(folder: Path) -> bool:
    """Whether a folder has all files that were made, unchanged."""
    try:
        hashes = json.loads((folder / HASHES).read_bytes())
        return bool(hashes) and all(_has_digest(folder / name, d) for name, d in hashes.items())
    except (OSError, ValueError, AttributeError):
        return False


def _size(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    with suppress(FileNotFoundError):
        return sum(file.stat().st_size for file in files)
    return 0


def _remove(path: Path) -> None:
    """Remove an entry; one that is gone already is as good."""
    with suppress(FileNotFoundError):
        path.unlink() if path.is_file() or path.is_symlink() else shutil.rmtree(path)
