"""Files that the nodes of a host and of one user keep: artifacts, and what is made of them.

    FOLDER/artifacts/SHA256        an artifact, as it lies in the object store
    FOLDER/recipes/SHA256          its pieces (`swarm.models.recipes`), where it came by them
    FOLDER/made/KEY/…              files that a node made of an artifact, with their hashes
    FOLDER/parts, FOLDER/locks     what is being written, and who writes it

An entry appears whole, by a rename, or not at all. Its hashes are checked each time that it is
used: a corrupt one is made again. One process makes an entry, and the others wait for it, as long
as it gets on. When there are more bytes than the limit, the entries that were not used for longest
are removed, except those that a process may be loading at the moment. A file stays readable for a
process that has it open or mapped.

An artifact that comes by its recipe is put together from pieces: those that lie here, in any
artifact, are copied, and the others are fetched. What a transfer brought stays in `parts` when it
breaks off, and the next one fetches the rest only.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from swarm.errors import InvalidArgument
from swarm.models.recipes import Piece, Recipe, spans

LIMIT = 4 << 30  # bytes
LOADING_FOR = 120.0  # seconds behind its use, in which an entry may still be read: it stays
LOCK_TIMEOUT = 120.0  # seconds for which the process that makes an entry may write nothing
LOCK_PAUSE = 0.05  # seconds between attempts at a lock: the kernel has no wait with a timeout
STALE_AFTER = 86400.0  # seconds after which the parts of a broken transfer are removed
HASHES = "hashes.json"

Chunks = Callable[[], AsyncIterator[bytes | memoryview]]
PartOf = Callable[[int, int], AsyncIterator[bytes | memoryview]]
"""The bytes [begin, end) of an artifact, in chunks."""


class WrongBytes(ValueError):
    """The bytes that came have another SHA-256 than the entry's name."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """An artifact that is here, of `size` bytes. made: whether it was not here before; fetched: the
    bytes that came for it."""

    path: Path
    size: int
    made: bool
    fetched: int


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/swarm`, or `~/.cache/swarm` (XDG Base Directory Specification)."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "swarm"


class ArtifactCache:
    """Files below `folder`, of `limit` bytes at most beside the entries that were used in the last
    `loading_for` seconds, by `clock` in seconds since 1970, and the one that was used last.

    All methods raise `OSError` where the disk is full or a file cannot be written or read, and
    `TimeoutError`, which is one, where another process does not finish an entry. Call `open` first.
    """

    def __init__(
        self,
        folder: Path,
        limit: int = LIMIT,
        loading_for: float = LOADING_FOR,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._loading_for = loading_for
        self._clock = clock
        self.folder = folder
        self.limit = limit
        self._artifacts, self._made = folder / "artifacts", folder / "made"
        self._recipes = folder / "recipes"
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
        for folder in (self._artifacts, self._recipes, self._made, self._parts, self._locks):
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
        async with self._only_one(f"artifact-{digest}", self._parts / digest):
            if not await asyncio.to_thread(_has_digest, path, digest):
                await self._write(path, digest, chunks)
        await asyncio.to_thread(self._used, path)
        return path

    async def has(self, digest: str) -> Path | None:
        """The file whose SHA-256 is `digest`, if it is here and unchanged. Waits for nobody."""
        path = self._artifacts / digest
        if not await asyncio.to_thread(_has_digest, path, digest):
            return None
        await asyncio.to_thread(self._used, path)
        return path

    async def assembled(self, digest: str, recipe: Recipe, part_of: PartOf) -> Assembled:
        """The file whose SHA-256 is `digest`, put together unless it is here already: of pieces
        that are here, and of the others, which `part_of(begin, end)` gives.

        Raises `WrongBytes` where the recipe is not that of the file, or wrong bytes came; nothing
        of them stays. Raises whatever `part_of` raises: what has come by then is not asked for
        again. Raises `OSError` where the disk has too little room, before anything is asked for.
        """
        path, part = self._artifacts / digest, self._parts / digest
        made, fetched = False, 0
        async with self._only_one(f"artifact-{digest}", part):
            if not await asyncio.to_thread(_has_digest, path, digest):
                made = True
                try:
                    missing = await asyncio.to_thread(self._begin, part, recipe)
                    fetched = await _fill(part, missing, part_of)
                    await asyncio.to_thread(self._finish, part, digest, recipe)
                except (OSError, WrongBytes):
                    _remove(part)  # wrong bytes, or a full disk, which needs its room
                    raise
        await asyncio.to_thread(self._used, path)
        return Assembled(path, recipe.size, made, fetched)

    def _begin(self, part: Path, recipe: Recipe) -> list[Piece]:
        """Fill the part with the pieces that are here; returns the others. Blocking."""
        begun = part.exists()
        if not begun:
            _new_file(part).close()
        known = self._known({piece.digest for piece in recipe.pieces})
        missing: list[Piece] = []
        free = shutil.disk_usage(self._parts).free
        with part.open("r+b") as sink:
            needed = recipe.size - _allocated(sink)
            if needed > free:
                raise OSError(
                    errno.ENOSPC,
                    f"{needed / 1e6:.1f} MB are needed, and {free / 1e6:.1f} MB are free in "
                    f"{self.folder}: make room, or name another folder by --cache",
                )
            sink.truncate(recipe.size)
            for piece in recipe.pieces:
                if begun and _is_at(sink, piece.offset, piece):
                    continue
                content = _from_here(known.get(piece.digest, []), piece)
                if content is None:
                    missing.append(piece)
                else:
                    sink.seek(piece.offset)
                    sink.write(content)
        return missing

    def _known(self, wanted: set[str]) -> dict[str, list[tuple[Path, int]]]:
        """In which files, and where, pieces lie by the recipes of what is here."""
        found: dict[str, list[tuple[Path, int]]] = {}
        for entry in self._recipes.iterdir():
            file = self._artifacts / entry.name
            try:
                recipe = Recipe.from_json(entry.read_bytes()) if file.is_file() else None
            except (InvalidArgument, FileNotFoundError):
                recipe = None
            if recipe is None:  # its artifact is gone, or the file is damaged: it cannot be used
                _remove(entry)
                continue
            for piece in recipe.pieces:
                if piece.digest in wanted:
                    found.setdefault(piece.digest, []).append((file, piece.offset))
        return found

    def _finish(self, part: Path, digest: str, recipe: Recipe) -> None:
        """Check the whole, and let it appear. Blocking. Raises `WrongBytes`."""
        found = _digest(part)
        if found != digest:
            raise WrongBytes(f"SHA-256 {found} came instead of {digest}")
        new = part.with_name(f"{digest}.recipe")
        new.write_bytes(recipe.to_json())
        os.replace(part, self._artifacts / digest)
        os.replace(new, self._recipes / digest)  # last: a recipe without its file is removed

    @asynccontextmanager
    async def _only_one(self, name: str, part: Path) -> AsyncIterator[None]:
        """Wait until no other process, and no other task, makes this entry. Raises `TimeoutError`
        once who makes it has written nothing to its part for `LOCK_TIMEOUT`."""
        waiting = _Waiting(part)
        with _lock_file(self._locks / name) as lock:
            while not lock.take():
                waiting.go_on(name)
                await asyncio.sleep(LOCK_PAUSE)
            yield

    async def _write(self, path: Path, digest: str, chunks: Chunks) -> None:
        # Chunks are small, and go to the system's page cache: a thread for each would cost more.
        part = self._parts / digest
        found = hashlib.sha256()
        try:
            with _new_file(part) as sink:
                async for chunk in chunks():
                    found.update(chunk)
                    sink.write(chunk)
            if found.hexdigest() != digest:
                raise WrongBytes(f"SHA-256 {found.hexdigest()} came instead of {digest}")
            os.replace(part, path)
        except BaseException:
            _remove(part)
            raise

    def made(
        self,
        key: str,
        make: Callable[[Path], None],
        is_whole: Callable[[Path], bool] | None = None,
    ) -> Path:
        """The folder `key`, which `make(folder)` fills unless it is here already. Blocking.

        key: letters and digits. is_whole(folder): whether it is here, unchanged; None hashes its
        files, which a folder whose files prove themselves does not need. Raises whatever `make`
        raises.
        """
        path = self._made / key
        waiting = _Waiting(path)
        with _lock_file(self._locks / f"made-{key}") as lock:
            while not lock.take():
                waiting.go_on(key)
                time.sleep(LOCK_PAUSE)
            if not (is_whole or _is_whole)(path):
                _remove(path)
                part = Path(tempfile.mkdtemp(dir=self._parts))
                try:
                    make(part)
                    if is_whole is None:
                        hashes = {file.name: _digest(file) for file in part.iterdir()}
                        (part / HASHES).write_text(json.dumps(hashes), encoding="utf-8")
                    os.replace(part, path)
                except BaseException:
                    _remove(part)
                    raise
        self._used(path)
        return path

    def _used(self, path: Path) -> None:
        """Note that an entry was used; remove those that were not, as far as they are too many.
        Blocking: what is removed may be many files."""
        now = self._clock()
        with suppress(FileNotFoundError):  # another process may have removed it just now
            os.utime(path, (now, now))
        entries = [e for e in self._entries() if e[2] != path]
        remaining = self.limit - _size(path)
        for used, size, entry in sorted(entries, reverse=True):
            remaining -= size
            if remaining < 0 and now - used >= self._loading_for:
                _remove(entry)
                _remove(self._recipes / entry.name)

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """When each entry was used last, its bytes, and its path."""
        for folder in (self._artifacts, self._made):
            for entry in folder.iterdir():
                with suppress(FileNotFoundError):
                    yield entry.stat().st_mtime, _size(entry), entry


class _Waiting:
    """How long nothing has been written to a part by the process that is waited for."""

    def __init__(self, part: Path) -> None:
        self._part = part
        self._written = _written(part)
        self._since = time.monotonic()

    def go_on(self, name: str) -> None:
        """Raises `TimeoutError` where that is too long."""
        written, now = _written(self._part), time.monotonic()
        if written != self._written:
            self._written, self._since = written, now
        elif now - self._since > LOCK_TIMEOUT:
            raise TimeoutError(f"another process holds {name} for too long")


def _written(part: Path) -> int:
    try:
        return part.stat().st_mtime_ns
    except OSError:
        return 0


class _Lock:
    """A lock that goes with its file, and with a process that ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    def take(self) -> bool:
        """Whether it is ours now; False: another one has it."""
        file = self._path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last owner may have removed the file: then this lock is on a file that no other
            # process sees.
            if os.fstat(file.fileno()).st_ino == os.stat(self._path).st_ino:
                self._file = file
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        finally:
            if self._file is not file:
                file.close()
        return False

    def release(self) -> None:
        """Remove the file, so that none is left for each entry there ever was."""
        if self._file is not None:
            _remove(self._path)
            self._file.close()


@contextmanager
def _lock_file(path: Path) -> Iterator[_Lock]:
    lock = _Lock(path)
    try:
        yield lock
    finally:
        lock.release()


def _new_file(path: Path) -> IO[bytes]:
    """An empty file for this user alone, to write to."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb")


async def _fill(part: Path, missing: list[Piece], part_of: PartOf) -> int:
    """Write the missing pieces to their places, as they come; returns their bytes."""
    fetched = 0
    # Chunks are small, and go to the system's page cache: a thread for each would cost more.
    with part.open("r+b") as sink:
        for begin, end in spans(missing):
            sink.seek(begin)
            remaining = end - begin
            async for chunk in part_of(begin, end):
                remaining -= len(chunk)
                if remaining < 0:
                    raise WrongBytes(f"more than {end - begin} bytes came for a part of a file")
                fetched += sink.write(chunk)
            if remaining:
                raise WrongBytes(f"{remaining} bytes of a part of a file did not come")
    return fetched


def _allocated(file: IO[bytes]) -> int:
    """Bytes that a file takes on the disk: a hole takes none."""
    return os.fstat(file.fileno()).st_blocks * 512  # the unit of stat(2), whatever the disk's is


def _from_here(places: list[tuple[Path, int]], piece: Piece) -> bytes | None:
    """The piece's bytes from one of these files, None where none has them any more."""
    for file, offset in places:
        with suppress(FileNotFoundError), file.open("rb") as source:
            source.seek(offset)
            content = source.read(piece.length)
            if hashlib.sha256(content).hexdigest() == piece.digest:
                return content
    return None


def _is_at(file: IO[bytes], offset: int, piece: Piece) -> bool:
    """Whether a file has the piece there."""
    file.seek(offset)
    return hashlib.sha256(file.read(piece.length)).hexdigest() == piece.digest


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
