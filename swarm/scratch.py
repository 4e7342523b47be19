"""Folders for the time of a process: removed at its end, or by the next process if it was killed.

A folder is its owner's as long as the owner holds the lock on the file `lock` in it. The kernel
drops the lock with the process, whatever ends it; so a folder whose lock can be taken has no owner.
A process can also be killed between making its folder and the file in it, so an empty folder has no
owner either: a maker whose folder is removed at that moment makes another.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

try:
    import fcntl
except ImportError:  # no such locks here: what a killed process leaves stays
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("swarm")

PREFIX = "swarm-"
LOCK = "lock"
# The names that `Scratch` gives, with the eight characters of `tempfile.mkdtemp`.
NAME = re.compile(rf"{PREFIX}[a-z-]+-[a-z0-9_]{{8}}")


class Scratch:
    """`with Scratch("logs") as folder:`, or `remove()` when it is over; `path` is the folder.

    The first one of a process also removes the folders of this user's processes that were killed.
    Raises `OSError` where no folder can be made.
    """

    _swept = False

    def __init__(self, name: str) -> None:
        if not Scratch._swept:
            Scratch._swept = True
            sweep()
        self._lock: int | None = None
        while self._lock is None:
            self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-"))
            self._lock = self._locked()

    def _locked(self) -> int | None:
        """Lock the new folder; None where a sweep found it before it was locked, and has removed
        it."""
        try:
            file = os.open(self.path / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        except FileNotFoundError:
            return None
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not (self.path / LOCK).exists():
                os.close(file)
                return None
        return file

    def remove(self) -> None:
        """Remove the folder; once more does nothing."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


def sweep() -> list[Path]:
    """Remove this user's folders that have no owner any more; returns them."""
    if fcntl is None:
        return []
    found = _swept_empty()
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        try:
            file = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's, or gone by now
        try:
            if os.fstat(file).st_uid != os.geteuid() or lock.parent.is_symlink():
                continue
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # its owner lives
        else:
            if _remove(lock.parent):
                log.info("%s was left by a process that was killed: removed", lock.parent)
                found.append(lock.parent)
        finally:
            os.close(file)
    return found


def _swept_empty() -> list[Path]:
    """Remove this user's folders that were made and not locked; returns them."""
    found = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        if not NAME.fullmatch(folder.name) or folder.is_symlink():
            continue
        try:
            if folder.stat().st_uid == os.geteuid():
                folder.rmdir()  # refuses a folder that holds anything
                found.append(folder)
        except OSError:
            continue  # it has an owner, is no folder, or is gone by now
    return found


def _remove(folder: Path) -> bool:
    """Remove a folder, and its lock last: a folder that processes of the killed owner still write
    into stays whole enough for the next sweep. Returns whether it is gone."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != LOCK:
            entry.unlink(missing_ok=True)
    if [entry.name for entry in folder.iterdir()] != [LOCK]:
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
