"""Whether to propose another plan now, and why: hysteresis, the cost of moving, one move a minute.

Any node may propose; one that comes too late finds another revision of the key, and its proposal
is dropped. To spare the fleet the work, only the first `PROPOSERS` living nodes of the role look,
by rendezvous hashing, and each later one waits a little longer: the first one usually wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from swarm.auto.document import PlanInForce, PlanSlot
from swarm.auto.drafts import Draft
from swarm.flow.lasting import holds_since
from swarm.routing.rendezvous import hash64, score

SETTLE = 2.0  # seconds of a new node, until it has heard of all others
BETTER = 0.15  # share of the present period by which another plan has to be shorter …
BETTER_FOR = 10.0  # … for so many seconds
BROKEN_FOR = 1.0  # seconds for which a plan cannot run before another one is proposed
MOVE_EVERY = 60.0  # seconds between two moves of a plan that can run
MENDED_EVERY = 3.0  # seconds between two plans where the present one cannot run
PROPOSERS = 3  # nodes that look whether another plan would be better
LATER = 2.0  # seconds that each further one of them waits longer
LOADED_A_SECOND = 30e6  # bytes that a node fetches, verifies and loads
PAYS_WITHIN = 60.0  # seconds in which the gain has to be worth the loading


@dataclass(frozen=True, slots=True)
class Situation:
    """What a node that may propose sees. broken: why the plan in force cannot run, "" where it
    can. present: its predicted period, microseconds. best: None where no plan can run."""

    plan: PlanInForce | None
    broken: str
    present: float
    best: Draft | None


def place_of(key: str, node: str, nodes: Iterable[str]) -> int:
    """The place of a node among those that may propose, by rendezvous hashing; `PROPOSERS` of one
    that only watches. nodes: each once. Most nodes know after a few of them that they watch."""
    hashed, before, is_known = hash64(key), 0, False
    own = -score(hashed, hash64(node)), node
    for each in nodes:
        if each == node:
            is_known = True
        elif (-score(hashed, hash64(each)), each) < own:
            before += 1
            if before == PROPOSERS:
                return PROPOSERS
    return before if is_known else PROPOSERS


class Proposing:
    """One node's patience. `now`: seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._number = -1  # of the plan that was seen last
        self._moved = -inf
        self._better_since: float | None = None
        self._broken_since: float | None = None

    def observe(self, seen: Situation, place: int, now: float) -> str:
        """Why this node proposes `seen.best` now; "" where it does not. place: see `place_of`."""
        if self._first is None:
            self._first = now
        number = 0 if seen.plan is None else seen.plan.number
        if number != self._number:
            # Of one that stood when this node came, nobody here knows how long it has stood.
            self._number, self._moved = number, now
            self._better_since = self._broken_since = None
        best = seen.best
        self._broken_since = holds_since(self._broken_since, bool(seen.broken), now)
        self._better_since = holds_since(self._better_since, _is_better(seen), now)
        if best is None or place >= PROPOSERS or now - self._first < SETTLE:
            return ""
        if seen.plan is not None and (seen.plan.frozen or _is_same(best, seen.plan)):
            return ""
        wait = LATER * place
        if seen.broken:
            lasts = self._broken_since is not None and now - self._broken_since >= BROKEN_FOR + wait
            rests = seen.plan is None or now - self._moved >= MENDED_EVERY
            return seen.broken if lasts and rests else ""
        if self._better_since is None or now - self._better_since < BETTER_FOR + wait:
            return ""
        if now - self._moved < MOVE_EVERY:
            return ""
        return f"{1 - best.period / seen.present:.0%} shorter from one request to the next"


def _is_better(seen: Situation) -> bool:
    """Whether moving pays: by enough, and more than the loading costs meanwhile."""
    best = seen.best
    if best is None or seen.broken or not 0 < seen.present < inf:
        return False
    gain = 1 - best.period / seen.present
    return gain > BETTER and gain * PAYS_WITHIN > best.to_load / LOADED_A_SECOND


def _is_same(draft: Draft, plan: PlanInForce) -> bool:
    """Whether the nodes would hold the same stages."""

    def held(slots: Iterable[PlanSlot]) -> list[tuple[int, int, str]]:
        return [(slot.first, slot.last, slot.node) for slot in slots]

    return held(draft.slots) == held(plan.slots)
