"""The files of the embedded server: are they there, and is there room for more?

Measured with nats-server 2.15. Where its files are deleted, a running server goes on from open
files and memory, and its next start finds nothing. On a full disk it reads keys and artifacts and
serves the lanes, which are in memory, but takes no new key or artifact; a bucket that has met the
full disk once takes nothing more until the server starts again.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

# Bytes of free disk: below the first a store counts as full, above the second as one with room. Not
# one number, lest a store at the limit be called full and not full in turns.
FULL_BELOW, ROOM_ABOVE = 1 << 20, 2 << 20


class StoreState(StrEnum):
    """fine; full: no new key or artifact is taken; gone: files of a bucket were deleted."""

    FINE = "fine"
    FULL = "full"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """One look. buckets: the folders of streams that are kept in files. free: bytes."""

    buckets: frozenset[str]
    free: int


def look_at(store: Path) -> StoreFiles:
    """The files below the store's directory, and the room on its disk."""
    found: list[str] = []
    with contextlib.suppress(OSError):  # somebody may be deleting it just now
        found = [path.name for path in store.glob("jetstream/*/streams/*")]
    buckets = frozenset(name for name in found if name.startswith(("KV_", "OBJ_")))
    for folder in (store, *store.parents):
        with contextlib.suppress(OSError):
            return StoreFiles(buckets, shutil.disk_usage(folder).free)
    return StoreFiles(buckets, 0)


def judged(seen: StoreFiles, known: frozenset[str], before: StoreState) -> StoreState:
    """The state of a store. known: the buckets that it has held since the server's start."""
    if not known <= seen.buckets:
        return StoreState.GONE
    limit = ROOM_ABOVE if before is StoreState.FULL else FULL_BELOW
    return StoreState.FULL if seen.free < limit else StoreState.FINE
