"""Drafts for more nodes than the mesh's own programme sees through, by `shards.auto`.

The quick draft (`swarm.auto.drafts.Partition`) keeps nodes in the order of what they hold. Among
many unlike nodes another order is a quarter shorter from one request to the next, and finding it
takes seconds of a thread: so it is looked for only while the present plan runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from math import inf

from shards.auto.plan import make_plan
from shards.auto.predict import Range
from shards.auto.problem import (
    NO_CODEC,
    Codec,
    Device,
    DeviceLink,
    PlanningProblem,
    PlanObjective,
    Segment,
)
from shards.errors import PlanError
from swarm.auto.document import MOST_REPLICAS, PlanInForce, PlanSlot
from swarm.auto.drafts import (
    MOST_STEPS,
    WORTH_AN_ORDER,
    Draft,
    Partition,
    StageEstimate,
    has_dear_slot,
    paces,
    predicted,
    slot_of,
    steps_of,
    to_load,
)
from swarm.auto.links import NEAR
from swarm.auto.slots import AutoNode
from swarm.wire.codec_choice import COSTS, SLOWER
from swarm.wire.tensors import Coding

SERVER = "server:"  # no node's id: where requests come from, and results go to
MOST_SIZE = 400  # stages times nodes: two seconds of a core


class Searching:
    """A `Planner`."""

    def __init__(self) -> None:
        self._quick = Partition()

    def draft(
        self,
        key: str,
        stages: Sequence[StageEstimate],
        nodes: Sequence[AutoNode],
        named: Collection[int],
        thorough: bool = True,
    ) -> Draft | None:
        """See `Planner`."""
        quick = self._quick.draft(key, stages, nodes, named)
        size = len(stages) * len(nodes)
        known = steps_of(len(stages), nodes) <= MOST_STEPS
        if quick is None or named or not thorough or known or size > MOST_SIZE:
            return quick
        found = _searched(stages, nodes)
        if found is None or found.period >= quick.period * (1 - WORTH_AN_ORDER):
            return quick
        return found


def _searched(stages: Sequence[StageEstimate], nodes: Sequence[AutoNode]) -> Draft | None:
    pace = paces(nodes, stages)
    try:
        ranges = make_plan(problem_of(stages, nodes)).ranges
    except PlanError:
        return None
    by_id = {node.node: node for node in nodes}
    slots = tuple(_slot(each, stages, pace[each.devices[0]]) for each in ranges)
    filled = {node: number for number, each in enumerate(ranges) for node in each.devices}
    if has_dear_slot(slots, nodes, stages):
        return None
    period = predicted(PlanInForce("", "", 1, slots), filled, nodes, stages)
    load = max(to_load(by_id[node], slots[number], stages) for node, number in filled.items())
    return Draft(slots, period, load)


def problem_of(stages: Sequence[StageEstimate], nodes: Sequence[AutoNode]) -> PlanningProblem:
    """The stages and nodes as `shards.auto` takes them. Nodes of a host are a site; between
    sites messages go by the server. Raises PlanError where there is nothing to plan."""
    pace = paces(nodes, stages)
    devices = [
        Device(
            node.node,
            memory=max(1, node.room),
            site=site_of(node),
            times=tuple(us / 1e3 for us in pace[node.node]),
            session=0,  # a stage's need counts it
        )
        for node in nodes
    ]
    segments = tuple(
        Segment(str(n), s.usual_us / 1e3, s.need, out=s.sends) for n, s in enumerate(stages, 1)
    )
    if all(node.link == NEAR for node in nodes):
        return PlanningProblem(segments, tuple(devices), PlanObjective.THROUGHPUT)
    # The server computes nothing: it has no memory to speak of, and no speed.
    devices.append(Device(SERVER, 1e-6, 0.5, SERVER, session=0))
    return PlanningProblem(
        segments,
        tuple(devices),
        PlanObjective.THROUGHPUT,
        site_links(nodes),
        codecs=codecs_of(stages[0].received_as),
        source=SERVER,
        input_bytes=stages[0].receives,
    )


def site_links(nodes: Iterable[AutoNode]) -> dict[tuple[str, str], DeviceLink]:
    """Between the hosts of nodes, and from each to the server, where one of the two is slow."""
    ends = {site_of(node): node.link for node in nodes} | {SERVER: NEAR}
    return {
        (one, other): DeviceLink(
            min(a.up or inf, b.down or inf), (a.round_trip_us + b.round_trip_us) / 1e3
        )
        for one, a in ends.items()
        for other, b in ends.items()
        if one != other and (a != NEAR or b != NEAR)
    }


def site_of(node: AutoNode) -> str:
    """Its host; a node of which nobody knows that is a site of its own."""
    return node.host or node.node


def codecs_of(codings: Iterable[Coding]) -> tuple[Codec, ...]:
    """Those in which tensors may travel, and none."""
    costs = [(coding, COSTS[coding]) for coding in codings]
    return NO_CODEC, *(
        Codec(
            "+".join(filter(None, (coding.lossy, "zstd" if coding.zstd else ""))),
            1 / cost.ratio,
            cost.seconds * SLOWER * 1e9,
        )
        for coding, cost in costs
    )


def _slot(each: Range, stages: Sequence[StageEstimate], pace: Sequence[float]) -> PlanSlot:
    spent = sum(pace[each.start : each.end])
    slot = slot_of(stages, each.start + 1, each.end, each.devices[0], spent)
    return replace(slot, replicas=min(MOST_REPLICAS, len(each.devices)))
