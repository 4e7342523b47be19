"""Small files of keys and lists, which people and processes change, and which nodes read
meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swarm.errors import InvalidArgument, Unavailable
from swarm.security.readers import check_readers

# Seconds. Who changes a folder of keys may tell servers meanwhile, which takes some seconds where
# one is away.
WAIT = 30.0
_ASK_EVERY = 0.02  # seconds; the kernel's own wait has no end


def read_private(path: str | Path, most: int = -1) -> bytes:
    """A file that nobody else may read; `most` of its bytes, -1 for all. Raises `OSError`, and
    `InvalidArgument` for one that others may read, or that is no file."""
    # A pipe without a writer would keep a blocking reader waiting.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise InvalidArgument("it is no file")
        check_readers(descriptor, path)
        return file.read(most)


def replace(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file whole or not at all. Raises `OSError`."""
    with _beside(path, data, mode) as temporary:
        os.replace(temporary, path)


def rewrite(path: Path, data: bytes) -> None:
    """Write a file whole or not at all. One that is there keeps its owner, group and mode, so that
    whoever reads it (a server of another user) goes on; the world may read none. Raises `OSError`.
    """
    try:
        before = path.stat()
    except FileNotFoundError:
        replace(path, data)
        return
    with _beside(path, data, stat.S_IMODE(before.st_mode) & 0o770) as temporary:
        if (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
            mode = stat.S_IMODE(temporary.stat().st_mode)
            os.chown(temporary, before.st_uid, before.st_gid)
            temporary.chmod(mode)  # a change of the owner takes some bits away
        os.replace(temporary, path)


def create(path: Path, data: bytes) -> None:
    """Write a new file (0600) whole; one that is there already, or that another process makes
    meanwhile, stays. Its folder is made (0700) where it is missing. Raises `OSError`."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _beside(path, data, 0o600) as temporary, contextlib.suppress(FileExistsError):
        os.link(temporary, path)


@contextmanager
def _beside(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """A file with these bytes in the same folder, on the disk; it goes at the end."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as sink:
            sink.write(data)
            sink.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def alone(path: Path, wait: float = WAIT) -> Iterator[None]:
    """Be the only process that changes a file, or what is in a folder. wait: seconds for others to
    end their changes. Raises `Unavailable` where they do not, and `OSError`.

    The lock is the kernel's, on a file in the folder, or beside the file, which is itself replaced:
    it ends with its process, however that ends. That file stays.
    """
    lock = path / ".lock" if path.is_dir() else path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until = time.monotonic() + wait
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise Unavailable(f"{path}: another command changes it: try again") from None
                time.sleep(_ASK_EVERY)
        yield
    finally:
        os.close(descriptor)
