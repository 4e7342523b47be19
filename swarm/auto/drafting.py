"""When a node makes another draft, and whether its last one holds still. Pure.

In a large mesh, or behind links whose figures vary, the view changes more often than drafts may
be made. So a draft counts as long as its nodes live and have room: what is expected of it is
reckoned anew from the present view.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf

from swarm.auto.document import PlanInForce
from swarm.auto.drafts import Draft, Planner, StageEstimate, predicted, to_load
from swarm.auto.slots import AutoNode

SHARE = 0.05  # of a core, at most, for drafts


class Drafting:
    """One node's drafts. `now`: seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._nodes: tuple[AutoNode, ...] = ()
        self._named: frozenset[int] | None = None  # None: no draft was made yet
        self._thorough = False
        self._draft: Draft | None = None
        self._began = self._after = -inf

    def is_due(
        self,
        nodes: Sequence[AutoNode],
        named: Collection[int],
        stages: Sequence[StageEstimate],
        thorough: bool,
        now: float,
    ) -> bool:
        """Whether to make one from this view, where none is being made. thorough: False where
        the present plan cannot run: then a draft that does not hold is replaced at once."""
        if (tuple(nodes), frozenset(named), thorough) == self._made_of:
            return False
        return now >= self._after or (not thorough and self.best(nodes, named, stages) is None)

    @property
    def _made_of(self) -> tuple[object, ...]:
        return self._nodes, self._named, self._thorough

    def begins(
        self, nodes: Sequence[AutoNode], named: Collection[int], thorough: bool, now: float
    ) -> None:
        """A draft is made from this view from now on."""
        self._draft, self._began = None, now
        self._nodes, self._named, self._thorough = tuple(nodes), frozenset(named), thorough

    def ends(self, draft: Draft | None, now: float) -> None:
        """It is made; None where these nodes cannot hold all stages."""
        self._draft = draft
        self._after = now + (now - self._began) / SHARE

    def best(
        self, nodes: Sequence[AutoNode], named: Collection[int], stages: Sequence[StageEstimate]
    ) -> Draft | None:
        """The last draft, as the present view has it; None where it does not hold any more."""
        draft = self._draft
        if draft is None or frozenset(named) != self._named:
            return None
        if tuple(nodes) == self._nodes:
            return draft
        by_id = {node.node: node for node in nodes}
        for slot in draft.slots:
            if slot.node not in by_id or by_id[slot.node].room < slot.need:
                return None
        load = max((to_load(by_id[s.node], s, stages) for s in draft.slots), default=0)
        if any(slot.replicas > 1 for slot in draft.slots):
            return replace(draft, to_load=load)  # it names only the first node of a slot
        filled = {slot.node: number for number, slot in enumerate(draft.slots)}
        period = predicted(PlanInForce("", "", 1, draft.slots), filled, nodes, stages)
        return Draft(draft.slots, period, load)


def first_draft(
    planner: Planner,
    key: str,
    stages: Sequence[StageEstimate],
    views: Sequence[Sequence[AutoNode]],
    named: Collection[int],
    thorough: bool,
) -> Draft | None:
    """The draft of the first view of the nodes that has room for one. See `Planner`."""
    for nodes in views:
        if (draft := planner.draft(key, stages, nodes, named, thorough)) is not None:
            return draft
    return None
