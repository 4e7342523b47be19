"""The network interfaces of this machine: some tests change them, others need them to stay.

A browser ends all its requests when an interface comes or goes. Tests run side by side, so those
that make interfaces outside of a namespace of their own wait for the pages of the others.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FILE = Path(tempfile.gettempdir()) / f"swarm-interfaces-{os.getuid()}.lock"
WITHIN = 120.0  # seconds: longer than any test has a page open
LOOK_EVERY = 0.05  # seconds


@contextmanager
def interfaces_stay() -> Iterator[None]:
    """No other test makes or removes an interface while the block lasts."""
    with _locked(fcntl.LOCK_SH):
        yield


@contextmanager
def interfaces_change() -> Iterator[None]:
    """No other test has a browser's page open while the block lasts."""
    with _locked(fcntl.LOCK_EX):
        yield


@contextmanager
def _locked(how: int) -> Iterator[None]:
    # The kernel gives the lock back with the file: a test that is killed keeps nobody waiting.
    with FILE.open("w", encoding="utf-8") as file:
        ends = time.monotonic() + WITHIN
        while True:
            try:
                fcntl.flock(file, how | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < ends, f"{FILE} is not free within {WITHIN} s"
                time.sleep(LOOK_EVERY)
        yield
