"""A draft: slots for the nodes that live, and how its requests fare there, as far as is measured.

`Planner` makes drafts. `Partition` is the planner of this package: a dynamic programme over stages
and nodes in the order of what they hold, so that little has to be loaded; and one over all orders
where nodes are few, which is taken where it is better by `WORTH_AN_ORDER`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from swarm.plans.document import MOST_NUMBER, PlanInForce, Slot
from swarm.plans.slots import AutoNode
from swarm.routing.rendezvous import rendezvous

HOP_US = 500.0  # of a processor's time for a message between two nodes, both sides together
# A further node has to gain so much: every slot costs a hop, and a node that may fail.
WORTH_A_NODE = 0.05
WORTH_AN_ORDER = 0.10  # the gain for which nodes change places
MOST_STEPS = 400_000  # of the programme over all orders: half a second
MOST_NODES = 32  # that one draft looks at: those that hold most, then the fastest


@dataclass(frozen=True, slots=True)
class StageFacts:
    """What is known of a stage beforehand. usual_us: measured where the model was split. need:
    bytes of memory that it takes. file: bytes that a node fetches."""

    usual_us: int
    need: int = 0
    file: int = 0


@dataclass(frozen=True, slots=True)
class Draft:
    """Slots, and what is expected of them. period: microseconds from one request to the next at the
    busiest slot. to_load: bytes that nodes have to load for it, on
    the node that loads most."""

    slots: tuple[Slot, ...]
    period: float
    to_load: int = 0


class Planner(Protocol):
    """Cuts the stages into slots for nodes."""

    def draft(
        self,
        key: str,
        stages: Sequence[StageFacts],
        nodes: Sequence[AutoNode],
        named: Collection[int],
        thorough: bool = True,
    ) -> Draft | None:
        """The best that these nodes can do; None where they cannot hold all stages.

        key: decides where nothing else does, so that all nodes draft alike. stages: from stage 1.
        named: stages that nodes named by hand serve: in no slot. thorough: False where the
        present plan cannot run, and a good draft now is better than the best one later."""
        ...


def paces(nodes: Sequence[AutoNode], stages: Sequence[StageFacts]) -> dict[str, list[float]]:
    """Microseconds of each stage on each node: measured, or else what the splitter measured,
    corrected by how the nodes that have measured compare with it."""
    usual = [float(max(1, stage.usual_us)) for stage in stages]
    known = {node.node: node.pace_us for node in nodes if len(node.pace_us) >= len(stages)}
    factors = sorted(sum(pace[: len(usual)]) / sum(usual) for pace in known.values())
    factor = factors[len(factors) // 2] if factors else 1.0
    guess = [pace * factor for pace in usual]
    return {
        node.node: [float(max(1, p)) for p in known[node.node][: len(usual)]]
        if node.node in known
        else guess
        for node in nodes
    }


def predicted(
    plan: PlanInForce,
    filled: Mapping[str, int],
    nodes: Sequence[AutoNode],
    stages: Sequence[StageFacts],
) -> float:
    """The period of a plan in force with the nodes that fill it. Slots that nobody fills are not
    counted: where a plan runs so, nodes named by hand serve them."""
    pace = paces(nodes, stages)
    rates = [0.0] * len(plan.slots)  # requests a microsecond
    for node, number in filled.items():
        slot = plan.slots[number]
        rates[number] += 1.0 / (HOP_US + sum(pace[node][slot.first - 1 : slot.last]))
    return max((1.0 / rate for rate in rates if rate), default=0.0)


def to_load(node: AutoNode, slot: Slot, stages: Sequence[StageFacts]) -> int:
    """Bytes that the node lacks of a slot's stages."""
    return sum(stages[stage - 1].file for stage in slot.stages if stage not in node.serves)


class Partition:
    """See the module: contiguous ranges over nodes."""

    def draft(
        self,
        key: str,
        stages: Sequence[StageFacts],
        nodes: Sequence[AutoNode],
        named: Collection[int],
        thorough: bool = True,
    ) -> Draft | None:
        """See `Planner`."""
        wanted = [n for n in range(1, len(stages) + 1) if n not in named]
        if not wanted:
            return Draft((), 0.0)
        by_chance = {node: at for at, node in enumerate(rendezvous(key, (n.node for n in nodes)))}
        pace = paces(nodes, stages)
        least = min(stages[stage - 1].need for stage in wanted)
        looked_at = sorted(
            (node for node in nodes if node.room >= least),
            key=lambda n: (-len(n.serves), sum(pace[n.node]), by_chance[n.node]),
        )[:MOST_NODES]
        # Who serves early stages comes early: less has to be loaded.
        beyond = len(stages) + 1
        looked_at.sort(key=lambda n: (min(n.serves, default=beyond), by_chance[n.node]))
        by_id = {node.node: node for node in nodes}

        def best_of(ways: Sequence[tuple[Slot, ...]]) -> Draft | None:
            best: Draft | None = None
            for slots in ways:
                period = max(HOP_US + slot.compute_us for slot in slots)
                if best is None or period < best.period * (1 - WORTH_A_NODE):
                    load = max(to_load(by_id[slot.node], slot, stages) for slot in slots)
                    best = Draft(slots, period, load)
            return best

        in_order = best_of(_ways(wanted, stages, looked_at, pace))
        if steps_of(len(wanted), len(looked_at)) > MOST_STEPS:
            return in_order
        exact = best_of(_all_ways(wanted, stages, looked_at, pace))
        if in_order is None or exact is None:
            return exact
        return exact if exact.period < in_order.period * (1 - WORTH_AN_ORDER) else in_order


def steps_of(stages: int, nodes: int) -> int:
    """Steps of the programme over all orders of nodes."""
    return stages * stages * nodes * (1 << nodes) // 4


def _all_ways(
    wanted: Sequence[int],
    stages: Sequence[StageFacts],
    nodes: Sequence[AutoNode],
    pace: Mapping[str, Sequence[float]],
) -> list[tuple[Slot, ...]]:
    """As `_ways`, over all orders of the nodes."""
    count = len(wanted)
    # at[i][mask]: the first i stages on the nodes of the mask, the busiest slot as short as can
    # be; how that was reached: the stages and the mask before.
    at: list[dict[int, tuple[float, int, int]]] = [{} for _ in range(count + 1)]
    at[0][0] = 0.0, 0, 0
    for begin in range(count):
        for mask, (busiest, _, _) in at[begin].items():
            for bit, node in enumerate(nodes):
                if mask >> bit & 1:
                    continue
                times, spent, need = pace[node.node], 0.0, 0
                for end in range(begin, count):
                    stage = wanted[end]
                    if end > begin and stage != wanted[end - 1] + 1:
                        break
                    spent += times[stage - 1]
                    need += stages[stage - 1].need
                    if need > node.room:
                        break
                    longest = max(busiest, spent)
                    known = at[end + 1].get(mask | 1 << bit)
                    if known is None or longest < known[0]:
                        at[end + 1][mask | 1 << bit] = longest, begin, mask
    best: dict[int, int] = {}  # the mask, by the number of its nodes
    for mask, (busiest, _, _) in at[count].items():
        size = mask.bit_count()
        if size not in best or busiest < at[count][best[size]][0]:
            best[size] = mask
    found = []
    for _, final in sorted(best.items()):
        slots: list[Slot] = []
        end, mask = count, final
        while end:
            _, begin, before = at[end][mask]
            node = nodes[(mask ^ before).bit_length() - 1]
            lie = range(wanted[begin], wanted[end - 1] + 1)
            spent = sum(pace[node.node][stage - 1] for stage in lie)
            need = sum(stages[stage - 1].need for stage in lie)
            slots.append(Slot(lie[0], lie[-1], node.node, _whole(spent), need))
            end, mask = begin, before
        found.append(tuple(reversed(slots)))
    return found


def _ways(
    wanted: Sequence[int],
    stages: Sequence[StageFacts],
    nodes: Sequence[AutoNode],
    pace: Mapping[str, Sequence[float]],
) -> list[tuple[Slot, ...]]:
    """The wanted stages over some of these nodes, in order: for each number of slots, as far as
    there is room, the way whose busiest slot is the shortest."""
    count = len(wanted)
    most = min(len(nodes), count)
    # reached[k][i]: the best way to have the first i stages on k slots with the nodes seen so far:
    # its busiest slot, and the slots.
    start: tuple[float, tuple[Slot, ...]] = (0.0, ())
    reached: list[dict[int, tuple[float, tuple[Slot, ...]]]] = [{0: start}]
    reached += [{} for _ in range(most)]
    for node in nodes:
        times = pace[node.node]
        for used in range(most - 1, -1, -1):
            for begin, (busiest, slots) in list(reached[used].items()):
                spent, need = 0.0, 0
                for end in range(begin, count):
                    stage = wanted[end]
                    if end > begin and stage != wanted[end - 1] + 1:
                        break  # a stage that is named by hand lies between
                    spent += times[stage - 1]
                    need += stages[stage - 1].need
                    if need > node.room:
                        break
                    longest = max(busiest, spent)
                    known = reached[used + 1].get(end + 1)
                    if known is None or longest < known[0]:
                        slot = Slot(wanted[begin], stage, node.node, _whole(spent), need)
                        reached[used + 1][end + 1] = longest, (*slots, slot)
    return [row[count][1] for row in reached[1:] if count in row]


def _whole(microseconds: float) -> int:
    return min(MOST_NUMBER, max(1, round(microseconds)))


def with_replicas(draft: Draft, plan: PlanInForce | None) -> Draft:
    """Where a slot stays as it is, its replicas stay too."""
    if plan is None:
        return draft
    before = {(slot.first, slot.last): slot.replicas for slot in plan.slots}
    slots = tuple(
        replace(slot, replicas=max(slot.replicas, before.get((slot.first, slot.last), 1)))
        for slot in draft.slots
    )
    return replace(draft, slots=slots)
