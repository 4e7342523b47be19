"""How soon, and how urgently, a node process that died starts again: pure functions.

A process that had been ready was doing its work, and its stage waits for it: it starts again at
once. The starts of a process that keeps dying take processor time from the others, and a process
that dies before it is ready will usually do so again. Both wait, longer each time.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

COVERS = ("fallback", "standby")  # they do the work of any shard that is away
AT_ONCE = 5  # deaths within `WINDOW`, of processes that had been ready, without a pause
WINDOW = 60.0  # seconds
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0  # seconds; each further death doubles the pause
# Seconds, where the one that died had been ready: requests with the usual budget of 5 s outwait it.
LONGEST_PAUSE_READY = 2.0
STABLE_AFTER = 10.0  # seconds of life after which earlier deaths before being ready are forgotten


@dataclass(frozen=True, slots=True)
class Past:
    """The deaths of one node's processes so far.

    deaths: when those died that had been ready, of the last `WINDOW`, `time.monotonic()`.
    failures: deaths in a row, up to the last one, of processes that were never ready."""

    deaths: tuple[float, ...] = ()
    failures: int = 0


def after_death(past: Past, now: float, was_ready: bool, lived: float) -> tuple[Past, float]:
    """A process died at `now` (seconds) after `lived` seconds: the past from now on, and the
    seconds until its successor starts."""
    recent = tuple(death for death in past.deaths if now - death < WINDOW)
    if was_ready:
        recent = (*recent, now)
        return Past(recent), min(LONGEST_PAUSE_READY, _pause(len(recent) - AT_ONCE))
    failures = 1 if lived > STABLE_AFTER else past.failures + 1
    return Past(recent, failures), _pause(failures)


def _pause(number: int) -> float:
    """Seconds of the pause with this number; the first one is 1."""
    if number < 1:
        return 0.0
    doublings = min(number - 1, 30)  # beyond them every pause is the longest
    return min(LONGEST_PAUSE, FIRST_PAUSE * float(2**doublings))


def is_missed(role: str, wanted: Collection[str], ready: Collection[str]) -> bool:
    """Whether no other process does the work of a role whose process has ended.

    wanted: the roles of all processes that are kept alive. ready: of those that live and have been
    ready, the one that ended not among them."""
    if role in COVERS:
        return any(other not in ready for other in wanted if other != role)
    return role not in ready and not any(cover in ready for cover in COVERS)
