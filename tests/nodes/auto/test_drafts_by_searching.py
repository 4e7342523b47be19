"""Among many unlike nodes a better order is found; where it is not worth it, nothing changes."""

from __future__ import annotations

import random

import pytest

from nodes.auto.searching import Searching
from swarm.auto.document import PlanInForce
from swarm.auto.drafts import Partition, StageEstimate, predicted
from swarm.auto.slots import AutoNode, fill

STAGES = tuple(StageEstimate(random.Random(n).randint(500, 3000), need=10) for n in range(16))


def unlike(count: int, seed: int) -> list[AutoNode]:
    chance = random.Random(seed)
    nodes = []
    for n in range(count):
        speed = chance.uniform(0.3, 3.0)
        pace = tuple(max(1, round(stage.usual_us / speed)) for stage in STAGES)
        nodes.append(AutoNode(f"auto-{n}", 1000, pace))
    return nodes


@pytest.mark.parametrize("seed", range(3))
def test_twelve_unlike_nodes_get_a_draft_that_is_no_worse_and_as_it_is_predicted(
    seed: int,
) -> None:
    nodes = unlike(12, seed)
    quick = Partition().draft("m/1", STAGES, nodes, ())
    found = Searching().draft("m/1", STAGES, nodes, ())
    assert quick is not None
    assert found is not None
    assert found.period <= quick.period
    plan = PlanInForce("m", "1", 1, found.slots)
    filled = fill(plan, nodes)
    assert len(filled) == sum(slot.replicas for slot in plan.slots)
    if all(slot.replicas == 1 for slot in plan.slots):
        assert abs(predicted(plan, filled, nodes, STAGES) - found.period) < 2


def test_where_a_plan_is_broken_or_stages_are_named_the_quick_draft_is_taken() -> None:
    nodes = unlike(12, 1)
    for named, thorough in (((), False), ((1,), True)):
        quick = Partition().draft("m/1", STAGES, nodes, named)
        assert Searching().draft("m/1", STAGES, nodes, named, thorough) == quick
    assert Searching().draft("m/1", STAGES, [AutoNode("small", 5)] * 1, ()) is None
