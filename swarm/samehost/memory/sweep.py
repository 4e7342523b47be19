"""Clean-up after owners that died: any node of the host does it, for all of them."""

from __future__ import annotations

import contextlib
import os
import time

from . import slots
from .claim import mesh_of
from .errors import ShmError
from .host import SHM_DIRECTORY
from .segment import open_segment, read_header

GRACE = 30.0  # seconds
# Seconds, for other meshes: their own nodes come first, but there may be none any more.
OTHER_MESH_GRACE = 600.0


def sweep(
    mesh: str,
    *,
    grace: float = GRACE,
    now: float | None = None,
    directory: str = SHM_DIRECTORY,
) -> int:
    """Unlink the segments of this user whose owner has been dead for `grace` seconds; those of
    other meshes when it has been dead for `OTHER_MESH_GRACE`.

    Call it at start and every few seconds. The first sweep that finds an owner dead writes the time
    into the segment, and any later sweep measures from that time; until the grace is over, claims
    that wait in a stream are still good. Receivers that have the segment mapped keep it anyway.
    A segment of a live owner (its lock is held, even by a stopped process), of another user, or
    with any other content is left alone. Measured: 0.07 ms for each segment, and 0.1 ms for each
    MB that is freed.

    Args:
        grace: seconds between noticing a death and unlinking; 0 unlinks at once.
        now: seconds of CLOCK_MONOTONIC, which all processes of a host share.

    Returns:
        How many segments this call unlinked. 0 where shared memory is unavailable; never raises
        for what it finds in the directory.
    """
    try:
        import fcntl

        names = os.listdir(directory)
    except (ImportError, OSError):
        return 0
    moment = time.monotonic() if now is None else now
    removed = 0
    for name in names:
        of = mesh_of(name)
        if of is None:
            continue
        patience = grace if of == mesh else max(grace, OTHER_MESH_GRACE)
        try:
            file = open_segment(directory, name, oldest=1)
        except ShmError:
            continue
        # Closing the descriptor drops the lock too.
        with contextlib.suppress(OSError, ShmError), os.fdopen(file, "rb", buffering=0):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: the owner lives
            if _dead_for(file, name, moment) >= patience:
                os.unlink(os.path.join(directory, name))
                removed += 1
    return removed


def _dead_for(file: int, name: str, now: float) -> float:
    """Seconds since the owner was first found dead. Writes the time into the segment if this is the
    first time."""
    orphaned_at = read_header(file, name, oldest=1)
    if 0.0 < orphaned_at <= now:
        return now - orphaned_at
    # Also a time from the future: a clock of another time namespace, or a damaged header.
    os.pwrite(file, slots.ORPHANED_AT.pack(now), slots.ORPHANED_AT_OFFSET)
    return 0.0
