"""Which node of the next stage a session goes to. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from swarm.routing.rendezvous import rendezvous


@dataclass(frozen=True, slots=True)
class Candidate:
    """A living node of a stage. priority: 0 for a primary; the lowest go first."""

    node: str
    priority: int = 0
    draining: bool = False


def choose(
    session: str, candidates: Iterable[Candidate], avoid: Collection[str], hint: str = ""
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
