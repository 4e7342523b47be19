"""Which node of the next stage a session goes to. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from swarm.language.marks import known
from swarm.routing.rendezvous import rendezvous

# A node gets the sessions whose beginning it holds, unless it has more sessions than another one by
# this part of its slots: that one computes the beginning then, and holds it too.
LEAN = 0.5


@dataclass(frozen=True, slots=True)
class SlotCandidate:
    """A living node of a stage. priority: 0 for a primary; the lowest go first. sessions, slots: as
    it told lately; no slots where it did not. follows: it follows sessions of others. marks: what
    it holds, see `swarm.language.marks`."""

    node: str
    priority: int = 0
    draining: bool = False
    sessions: int = 0
    slots: int = 0
    follows: bool = False
    marks: bytes = b""


def choose(
    session: str, candidates: Iterable[SlotCandidate], avoid: Collection[str], hint: str = ""
) -> str:
    """A node, the same for a session as long as the nodes are the same; "" for none. hint: a node
    that holds the session already, taken if it may be."""
    fit = [each for each in candidates if not each.draining and each.node not in avoid]
    if not fit:
        return ""
    if any(each.node == hint for each in fit):
        return hint
    best = min(each.priority for each in fit)
    return rendezvous(session, [each.node for each in fit if each.priority == best])[0]


def with_room(candidates: Iterable[SlotCandidate], avoid: Collection[str]) -> list[SlotCandidate]:
    """Those of the best priority that a beginning may draw sessions to, the least busy first."""
    fit = [each for each in candidates if not each.draining and each.node not in avoid]
    best = min((each.priority for each in fit), default=0)
    near = sorted((each for each in fit if each.priority == best), key=lambda each: each.sessions)
    return [
        each
        for each in near
        if each.sessions < each.slots
        and each.sessions - near[0].sessions <= max(1.0, LEAN * each.slots)
    ]


def holder(wanted: Sequence[bytes], able: Iterable[SlotCandidate]) -> tuple[str, int]:
    """The node that holds most of a beginning, and how many of its chunks; "" for none. able: as
    `with_room` gives them."""
    best, most = "", 0
    for each in able:
        chunks = known(each.marks, wanted)
        if chunks > most:
            best, most = each.node, chunks
    return best, most
