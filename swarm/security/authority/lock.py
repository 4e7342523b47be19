"""One process at a time changes a folder of keys.

The lock is the kernel's, on a file of the folder: it ends with its process, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swarm.errors import Unavailable

# Seconds. Who has the lock may tell servers meanwhile, which takes some seconds where one is away.
WAIT = 30.0
_LOOK_EVERY = 0.02  # seconds; the kernel's own wait has no end


@contextmanager
def locked(folder: Path, wait: float = WAIT) -> Iterator[None]:
    """Be the only one that changes `folder`, in all processes. wait: seconds for others to end
    their changes. Raises `Unavailable` where they do not, and `OSError`."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(descriptor, folder, time.monotonic() + wait)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path, until: float) -> None:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise Unavailable(f"{folder}: another command changes it: try again") from None
            time.sleep(_LOOK_EVERY)
