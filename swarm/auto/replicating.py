"""How many nodes a slot should have, by how busy those are that fill it. Pure.

What `swarm.fleet.scaling` wants for a stage it wants here for a slot: a node that computes several
stages is as busy as all of them together. Only nodes that fill no slot come into question.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from swarm.auto.document import PlanInForce
from swarm.auto.slots import AutoNode
from swarm.fleet.advertised import Where
from swarm.fleet.scaling import StageLoad
from swarm.fleet.warm_pool import StageState


class Change(NamedTuple):
    """Another number of replicas for the slot that has this stage. why: in one line."""

    stage: int
    replicas: int
    why: str


def slot_loads(
    plan: PlanInForce, filled: Mapping[str, int], states: Collection[StageState]
) -> list[StageLoad]:
    """The load of each slot that somebody fills, named by its first stage. states: of stages."""
    by_stage = {state.where[2]: state for state in states}
    found = []
    for number, slot in enumerate(plan.slots):
        own = [by_stage[stage] for stage in slot.stages if stage in by_stage]
        nodes = sum(taken == number for taken in filled.values())
        if own and nodes:
            where: Where = (plan.model, plan.version, slot.first)
            busy = min(float(nodes), sum(state.busy for state in own))
            work, covers = max(s.work for s in own), min(s.load.covers for s in own)
            pace = sum(state.pace for state in own)
            found.append(StageLoad(where, nodes, busy, work, covers, pace))
    return found


def change(
    plan: PlanInForce,
    filled: Mapping[str, int],
    nodes: Sequence[AutoNode],
    loads: Collection[StageLoad],
    wanted: Mapping[Where, int],
    helped: Collection[Where] = (),
) -> Change | None:
    """The one slot that gets a node, or gives one back; None where all is well. loads: see
    `slot_loads`; wanted: what `Scaling` makes of them; helped: by it, for an objective. A slot
    with a node that still loads its stages gets no other one: nobody knows yet how much that node
    helps."""
    if plan.frozen:
        return None
    loading = {
        filled[node.node]
        for node in nodes
        if node.node in filled and not node.serves.issuperset(plan.slots[filled[node.node]].stages)
    }
    by_first = {load.where[2]: load for load in loads}
    free = [node for node in nodes if node.node not in filled]
    order = sorted(enumerate(plan.slots), key=lambda s: -_share(by_first.get(s[1].first)))
    for number, slot in order:
        load = by_first.get(slot.first)
        if load is None or number in loading:
            continue
        want, share = wanted.get(load.where, load.nodes), f"{_share(load):.0%} of the time"
        if want > load.nodes >= slot.replicas and any(
            n.may_take(slot) and n.has_spare(slot) for n in free
        ):
            why = f"the nodes of stages {slot.first}-{slot.last} compute {share}"
            burns = "the objective burns, and " if load.where in helped else ""
            return Change(slot.first, slot.replicas + 1, burns + why)
        if want < load.nodes <= slot.replicas and slot.replicas > 1:
            why = f"the nodes of stages {slot.first}-{slot.last} compute only {share}"
            return Change(slot.first, slot.replicas - 1, why)
    return None


def _share(load: StageLoad | None) -> float:
    return 0.0 if load is None else load.busy / load.nodes
