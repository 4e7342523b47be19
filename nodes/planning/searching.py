"""Drafts for more nodes than the mesh's own programme sees through, by `shards.planning`.

The quick draft (`swarm.plans.drafts.Partition`) keeps nodes in the order of what they hold. Among
many unlike nodes another order is a quarter shorter from one request to the next, and finding it
takes seconds of a thread: so it is looked for only while the present plan runs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shards.errors import PlanError
from shards.planning.plan import make_plan
from shards.planning.predict import Range
from shards.planning.problem import Device, Objective, Problem, Segment
from swarm.plans.document import MOST_REPLICAS, Slot
from swarm.plans.drafts import (
    HOP_US,
    MOST_STEPS,
    WORTH_AN_ORDER,
    Draft,
    Partition,
    StageFacts,
    paces,
    steps_of,
    to_load,
)
from swarm.plans.slots import AutoNode

MOST_SIZE = 400  # stages times nodes: two seconds of a core


class Searching:
    """A `Planner`."""

    def __init__(self) -> None:
        self._quick = Partition()

    def draft(
        self,
        key: str,
        stages: Sequence[StageFacts],
        nodes: Sequence[AutoNode],
        named: Collection[int],
        thorough: bool = True,
    ) -> Draft | None:
        """See `Planner`."""
        quick = self._quick.draft(key, stages, nodes, named)
        size = len(stages) * len(nodes)
        known = steps_of(len(stages), len(nodes)) <= MOST_STEPS
        if quick is None or named or not thorough or known or size > MOST_SIZE:
            return quick
        found = _searched(stages, nodes)
        if found is None or found.period >= quick.period * (1 - WORTH_AN_ORDER):
            return quick
        return found


def _searched(stages: Sequence[StageFacts], nodes: Sequence[AutoNode]) -> Draft | None:
    pace = paces(nodes, stages)
    try:
        problem = Problem(
            tuple(Segment(str(n), s.usual_us / 1e3, s.need) for n, s in enumerate(stages, 1)),
            tuple(
                Device(
                    node.node,
                    memory=max(1, node.room),
                    times=tuple(us / 1e3 for us in pace[node.node]),
                    session=0,  # a stage's need counts it
                )
                for node in nodes
            ),
            Objective.THROUGHPUT,
        )
        ranges = make_plan(problem).ranges
    except PlanError:
        return None
    by_id = {node.node: node for node in nodes}
    slots = tuple(_slot(each, stages, pace[each.devices[0]]) for each in ranges)
    period, load = 0.0, 0
    for slot, each in zip(slots, ranges, strict=True):
        times = [sum(pace[node][each.start : each.end]) for node in each.devices]
        period = max(period, 1 / sum(1 / (HOP_US + spent) for spent in times))
        load = max(load, *(to_load(by_id[node], slot, stages) for node in each.devices))
    return Draft(slots, period, load)


def _slot(each: Range, stages: Sequence[StageFacts], pace: Sequence[float]) -> Slot:
    return Slot(
        each.start + 1,
        each.end,
        each.devices[0],
        max(1, round(sum(pace[each.start : each.end]))),
        sum(stage.need for stage in stages[each.start : each.end]),
        min(MOST_REPLICAS, len(each.devices)),
    )
