"""What the supervisor does about its server, and how it judges the server's files: pure functions.

A dead server starts again at once. Only a server that died without having answered since its start
waits, longer each time. A server that answers nothing for `HUNG_AFTER` is killed, and starts again.

Measured with nats-server 2.15: where its files are deleted, a running server goes on from open
files and memory, and its next start finds nothing. On a full disk it reads keys and artifacts and
serves the lanes, which are in memory, but takes no new key or artifact; a bucket that has met the
full disk once takes nothing more until the server starts again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, StrEnum, auto

HUNG_AFTER = 3.0  # seconds without an answer after which a server counts as hung
# Least number of probes without an answer for that: a supervisor that was stopped itself, or a
# machine that slept, may have waited long for a single answer.
LEAST_PROBES = 3
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0  # seconds before a start after failed ones, doubled
# Bytes of free disk: below the first a store counts as full, above the second as one with room. Two
# numbers, so that a store at the limit is not called full and not full in turns.
FULL_BELOW, ROOM_ABOVE = 1 << 20, 2 << 20


class ServerEvent(Enum):
    """What a probe of the server found, or what became of a start."""

    ANSWERED = auto()
    SILENT = auto()
    ENDED = auto()
    START_FAILED = auto()


class ServerAction(Enum):
    """What to do next."""

    PROBE = auto()
    KILL = auto()
    START = auto()


@dataclass(frozen=True, slots=True)
class Life:
    """A server since its last start.

    has_answered: whether it was up. silent_since: seconds of the clock at which the first of the
    unanswered probes began. silent_probes: their number. failures: starts in a row that led to no
    answer.
    """

    has_answered: bool = False
    silent_since: float = 0.0
    silent_probes: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class ServerStep:
    """after: seconds to wait before it is done."""

    do: ServerAction
    after: float = 0.0


def next_step(life: Life, event: ServerEvent, began: float, now: float) -> tuple[Life, ServerStep]:
    """The life after an event, and what to do. began: when the probe or the start began; both are
    seconds of one monotonic clock."""
    if event is ServerEvent.ANSWERED:
        return Life(has_answered=True), ServerStep(ServerAction.PROBE)
    if event is ServerEvent.SILENT:
        since = life.silent_since if life.silent_probes else began
        silent = replace(life, silent_since=since, silent_probes=life.silent_probes + 1)
        is_hung = now - since >= HUNG_AFTER and silent.silent_probes >= LEAST_PROBES
        return silent, ServerStep(ServerAction.KILL if is_hung else ServerAction.PROBE)
    if event is ServerEvent.ENDED and life.has_answered:
        return Life(), ServerStep(ServerAction.START)
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**life.failures)
    return Life(failures=life.failures + 1), ServerStep(ServerAction.START, pause)


class StoreState(StrEnum):
    """fine; full: no new key or artifact is taken; gone: files of a bucket were deleted."""

    FINE = "fine"
    FULL = "full"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class StoreFiles:
    """buckets: the folders of streams that are kept in files. free: bytes of the disk."""

    buckets: frozenset[str]
    free: int


def judged(seen: StoreFiles, known: frozenset[str], before: StoreState) -> StoreState:
    """The state of a store. known: the buckets that it has held since the server's start."""
    if not known <= seen.buckets:
        return StoreState.GONE
    limit = ROOM_ABOVE if before is StoreState.FULL else FULL_BELOW
    return StoreState.FULL if seen.free < limit else StoreState.FINE
