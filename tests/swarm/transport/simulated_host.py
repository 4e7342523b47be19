"""A sender, and processes of its host, in simulated time: what `HandoverPolicy` makes of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf

from swarm.transport.handover.policy import HandoverPolicy

PEER = "_INBOX.next"
ANSWERS_IN = 0.001  # seconds in which an event loop answers that is not busy


@dataclass
class Process:
    """A process of this host that does one parcel after the other.

    run: seconds of a run. word_after: seconds between a run's end and its word, of one parcel after
    the other. stopped: from when to when it is stopped. ends: when it is killed. refuses: from when
    to when it takes nothing. answers_in: seconds in which it answers the question whether it lives.
    """

    run: float = 0.0
    word_after: Sequence[float] = (0.001,)
    stopped: tuple[float, float] = (inf, inf)
    ends: float = inf
    refuses: tuple[float, float] = (inf, inf)
    answers_in: float = ANSWERS_IN
    free_at: float = 0.0

    def works_until(self, start: float, seconds: float) -> float:
        """When work that begins at `start` is done; `inf` where the process ends before."""
        stop, go_on = self.stopped
        end = start + seconds
        if stop <= start < go_on:
            end = go_on + seconds
        elif start < stop < end:
            end += go_on - stop
        return inf if end >= self.ends else end


@dataclass
class Fate:
    """One parcel: when it was sent, and when and how it was safe: `done`, or `stored`."""

    sent: float
    safe: float = inf
    how: str = ""
    handed: bool = False

    @property
    def waited(self) -> float:
        return self.safe - self.sent


@dataclass
class Host:
    """Parcels are sent to one process, at given times; the policy decides."""

    policy: HandoverPolicy
    process: Process
    usual: float  # seconds of a run, as the sender knows them
    peer: str = PEER
    fates: dict[str, Fate] = field(default_factory=dict)
    questions: int = 0
    refusals: int = 0
    _events: list[tuple[float, int, Callable[[float], None]]] = field(default_factory=list)
    _count: count[int] = field(default_factory=count)

    def send_at(self, times: Iterable[float], together: bool = False) -> None:
        """Parcels to be sent at these times."""
        for at in times:
            self._at(at, lambda now: self._send(now, together))

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        if when < inf:
            heapq.heappush(self._events, (when, next(self._count), event))

    def run(self, until: float = 60.0) -> list[Fate]:
        """All that happens; looks come exactly when they are due."""
        while self._events or self.policy.in_flight:
            due = self.policy.next_due
            if self._events and self._events[0][0] <= due:
                now, _, event = heapq.heappop(self._events)
                event(now)
            else:
                self._look(due)
            assert not self._events or self._events[0][0] < until, "it goes on for ever"
        return list(self.fates.values())

    # --- what happens ---------------------------------------------------------------------

    def _send(self, now: float, together: bool) -> None:
        key = f"parcel {len(self.fates)}"
        fate = self.fates[key] = Fate(now)
        process = self.process
        if not self.policy.accepts(self.peer, self.usual, now):
            self.policy.stored(now)
            self._safe(key, now, "stored")
            return
        fate.handed = True
        self.policy.handed_over(key, self.peer, self.usual, now, together)
        if now >= process.ends:
            self._gone(now)
            return
        if process.refuses[0] <= now < process.refuses[1]:
            self._at(now + ANSWERS_IN, lambda then: self._refused(key, then))
            return
        end = process.works_until(max(now, process.free_at), process.run)
        process.free_at = max(process.free_at, end)
        after = process.word_after[(len(self.fates) - 1) % len(process.word_after)]
        word = process.works_until(end, after) if end < inf else inf
        self._at(word, lambda then: self._done(key, then))

    def _done(self, key: str, now: float) -> None:
        if not self.fates[key].how:
            self.policy.acked(key, now)
            self._safe(key, now, "done")

    def _refused(self, key: str, now: float) -> None:
        if not self.fates[key].how:
            self.refusals += 1
            self.policy.refused(key, now)
            self._safe(key, now, "stored")

    def _gone(self, now: float) -> None:
        for key in self.policy.gone(self.peer, now):
            self._safe(key, now, "stored")

    def _look(self, now: float) -> None:
        look = self.policy.check(now)
        for key in look.store:
            self._safe(key, now, "stored")
        for peer in look.ask:
            self.questions += 1
            if now >= self.process.ends:
                self._gone(now)
                continue
            answer = self.process.works_until(now, self.process.answers_in)
            self._at(answer, lambda then, peer=peer: self.policy.lives(peer, then))

    def _safe(self, key: str, now: float, how: str) -> None:
        fate = self.fates[key]
        assert not fate.how, "a parcel ends once"
        fate.safe, fate.how = now, how


def host(process: Process, usual: float | None = None, stage: int = 1, last: int = 2) -> Host:
    """A sender of stage `stage`, and the next stage's process."""
    return Host(HandoverPolicy(stage, last), process, process.run if usual is None else usual)


def stored(fates: Iterable[Fate]) -> list[Fate]:
    """Those that were handed over in vain."""
    return [fate for fate in fates if fate.handed and fate.how == "stored"]
