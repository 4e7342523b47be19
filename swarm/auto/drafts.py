"""A draft: slots for the nodes that live, and how its requests fare there, as far as is measured.

`Planner` makes drafts. `Partition` is the planner of this package: a dynamic programme over stages
and nodes in the order of what they hold, so that little has to be loaded; and one over all orders
where nodes are few, which is taken where it is better by `WORTH_AN_ORDER`. A node behind a slow
link gets no slot whose tensors are longer on that link than they are computed on, unless the stages
have no room elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from swarm.auto.document import MOST_NUMBER, PlanInForce, PlanSlot
from swarm.auto.links import NEAR, time_on_link
from swarm.auto.slots import AutoNode
from swarm.routing.rendezvous import rendezvous
from swarm.wire.tensors import Coding

HOP_US = 500.0  # of a processor's time for a message between two nodes, both sides together
# A further node has to gain so much: every slot costs a hop, and a node that may fail.
WORTH_A_NODE = 0.05
WORTH_AN_ORDER = 0.10  # the gain for which nodes change places
MOST_STEPS = 400_000  # of the programme over all orders: half a second
MOST_NODES = 32  # that one draft looks at: those that hold most, then the fastest


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """What is known of a stage beforehand. usual_us: measured where the model was split. need:
    bytes of memory that it takes. file: bytes that a node fetches. receives, sends: bytes of a
    request's tensors, and the codings in which they may travel."""

    usual_us: int
    need: int = 0
    file: int = 0
    receives: int = 0
    sends: int = 0
    received_as: tuple[Coding, ...] = ()
    sent_as: tuple[Coding, ...] = ()


@dataclass(frozen=True, slots=True)
class Draft:
    """Slots, and what is expected of them. period: microseconds from one request to the next at the
    busiest slot or link. to_load: bytes that nodes have to load for it, on the node that loads
    most."""

    slots: tuple[PlanSlot, ...]
    period: float
    to_load: int = 0


class Planner(Protocol):
    """Cuts the stages into slots for nodes."""

    def draft(
        self,
        key: str,
        stages: Sequence[StageEstimate],
        nodes: Sequence[AutoNode],
        named: Collection[int],
        thorough: bool = True,
    ) -> Draft | None:
        """The best that these nodes can do; None where they cannot hold all stages.

        key: decides where nothing else does, so that all nodes draft alike. stages: from stage 1.
        named: stages that nodes named by hand serve: in no slot. thorough: False where the
        present plan cannot run, and a good draft now is better than the best one later."""
        ...


def paces(nodes: Sequence[AutoNode], stages: Sequence[StageEstimate]) -> dict[str, list[float]]:
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


class Crossings:
    """Microseconds of messages on nodes' links. any: whether a node is behind a slow one."""

    def __init__(self, stages: Sequence[StageEstimate], nodes: Sequence[AutoNode]) -> None:
        self._stages = stages
        self._slow = {node.node: node.link for node in nodes if node.link != NEAR}
        self._hosts = {node.node: node.host for node in nodes}
        self.any = bool(self._slow)

    def down(self, node: str, first: int) -> float:
        """To a node, of what this stage receives."""
        link, stage = self._slow.get(node, NEAR), self._stages[first - 1]
        return time_on_link(stage.receives, link.down, stage.received_as)

    def up(self, node: str, last: int) -> float:
        """From a node, of what this stage sends."""
        link, stage = self._slow.get(node, NEAR), self._stages[last - 1]
        return time_on_link(stage.sends, link.up, stage.sent_as)

    def handed_over(self, one: str, other: str) -> bool:
        """Whether messages between two nodes stay on their host."""
        return self._hosts[one] == self._hosts[other] != ""

    def before(self, previous: tuple[str, int] | None, node: str, first: int) -> float:
        """The longer of the two links that a message to `node` crosses. previous: node and last
        stage of the slot before, None at the pipeline's begin."""
        if previous is None:
            return self.down(node, first)
        before, last = previous
        if last == first - 1 and self.handed_over(before, node):
            return 0.0
        return max(self.up(before, last), self.down(node, first))

    def longest(self, slots: Sequence[PlanSlot]) -> float:
        """The longest of all messages of a request, through these slots."""
        previous: tuple[str, int] | None = None
        found = 0.0
        for slot in slots:
            found = max(found, self.before(previous, slot.node, slot.first))
            previous = slot.node, slot.last
        return max(found, self.up(*previous)) if previous else found

    def is_dear(
        self, previous: tuple[str, int] | None, node: str, first: int, last: int, spent: float
    ) -> bool:
        """Whether these stages are longer on the node's link than they compute there, `spent`
        microseconds, if what follows is on another host."""
        link = self._slow.get(node)
        if link is None:
            return False
        way = link.round_trip_us / 2 + self.up(node, last)
        if previous is None or previous[1] != first - 1 or not self.handed_over(previous[0], node):
            way += link.round_trip_us / 2 + self.down(node, first)
        return way > spent


def predicted(
    plan: PlanInForce,
    filled: Mapping[str, int],
    nodes: Sequence[AutoNode],
    stages: Sequence[StageEstimate],
) -> float:
    """The period of a plan in force with the nodes that fill it. Slots that nobody fills are not
    counted: where a plan runs so, nodes named by hand serve them."""
    pace, links = paces(nodes, stages), Crossings(stages, nodes)
    rates = [0.0] * len(plan.slots)  # requests a microsecond
    fillers: list[list[str]] = [[] for _ in plan.slots]
    for node, number in filled.items():
        fillers[number].append(node)

    def stays(node: str, beside: int) -> bool:
        """Whether all messages between a node and the slot with this stage stay on its host."""
        number = plan.of_stage(beside)
        others = [] if number is None else fillers[number]
        return bool(others) and all(links.handed_over(node, other) for other in others)

    for node, number in filled.items():
        slot = plan.slots[number]
        takes = HOP_US + sum(pace[node][slot.first - 1 : slot.last])
        if links.any:
            comes = 0.0 if stays(node, slot.first - 1) else links.down(node, slot.first)
            goes = 0.0 if stays(node, slot.last + 1) else links.up(node, slot.last)
            takes = max(takes, comes, goes)
        rates[number] += 1.0 / takes
    return max((1.0 / rate for rate in rates if rate), default=0.0)


def has_dear_slot(
    slots: Sequence[PlanSlot], nodes: Sequence[AutoNode], stages: Sequence[StageEstimate]
) -> bool:
    """Whether a slot is longer on the link of the node that it is for than it computes there."""
    links, previous = Crossings(stages, nodes), None
    for slot in slots:
        if links.is_dear(previous, slot.node, slot.first, slot.last, slot.compute_us):
            return True
        previous = slot.node, slot.last
    return False


def to_load(node: AutoNode, slot: PlanSlot, stages: Sequence[StageEstimate]) -> int:
    """Bytes that the node lacks of a slot's stages."""
    return sum(stages[stage - 1].file for stage in slot.stages if stage not in node.serves)


class Partition:
    """See the module: contiguous ranges over nodes."""

    def draft(
        self,
        key: str,
        stages: Sequence[StageEstimate],
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
        links = Crossings(stages, looked_at)

        def best_of(ways: Sequence[tuple[PlanSlot, ...]]) -> Draft | None:
            best: Draft | None = None
            for slots in ways:
                period = max(HOP_US + slot.compute_us for slot in slots)
                if links.any:
                    period = max(period, links.longest(slots))
                if best is None or period < best.period * (1 - WORTH_A_NODE):
                    load = max(to_load(by_id[slot.node], slot, stages) for slot in slots)
                    best = Draft(slots, period, load)
            return best

        few = steps_of(len(wanted), looked_at) <= MOST_STEPS
        for dear in (False, True) if links.any else (True,):
            in_order = best_of(_ways(wanted, stages, looked_at, pace, links, dear))
            exact = in_order
            if few:
                exact = best_of(_all_ways(wanted, stages, looked_at, pace, links, dear))
            if in_order is None or exact is None:
                found = exact
            else:
                is_worth = exact.period < in_order.period * (1 - WORTH_AN_ORDER)
                found = exact if is_worth else in_order
            if found is not None:
                return found
        return None


def steps_of(stages: int, nodes: Sequence[AutoNode]) -> int:
    """Steps of the programme over all orders of nodes."""
    count = len(nodes)
    befores = count if any(node.link != NEAR for node in nodes) else 1
    return stages * stages * count * befores * (1 << count) // 4


def _all_ways(
    wanted: Sequence[int],
    stages: Sequence[StageEstimate],
    nodes: Sequence[AutoNode],
    pace: Mapping[str, Sequence[float]],
    links: Crossings,
    dear: bool,
) -> list[tuple[PlanSlot, ...]]:
    """As `_ways`, over all orders of the nodes."""
    count = len(wanted)
    # at[i][mask, last]: the first i stages on the nodes of the mask, the busiest slot as short as
    # can be; how that was reached: the stages, the mask and the last node before. The last node is
    # told apart only where links are slow: -1 else.
    at: list[dict[tuple[int, int], tuple[float, int, tuple[int, int]]]]
    at = [{} for _ in range(count + 1)]
    at[0][0, -1] = 0.0, 0, (0, -1)
    for begin in range(count):
        for (mask, last), (busiest, _, _) in at[begin].items():
            previous = None if last < 0 else (nodes[last].node, wanted[begin - 1])
            for bit, node in enumerate(nodes):
                if mask >> bit & 1:
                    continue
                times, spent, need = pace[node.node], 0.0, 0
                before = busiest
                if links.any:
                    crosses = links.before(previous, node.node, wanted[begin])
                    before = max(before, crosses - HOP_US)
                for end in range(begin, count):
                    stage = wanted[end]
                    if end > begin and stage != wanted[end - 1] + 1:
                        break
                    spent += times[stage - 1]
                    need += stages[stage - 1].need
                    if need > node.room:
                        break
                    if not dear and links.is_dear(previous, node.node, wanted[begin], stage, spent):
                        continue
                    longest = max(before, spent)
                    if links.any and end == count - 1:
                        longest = max(longest, links.up(node.node, stage) - HOP_US)
                    key = mask | 1 << bit, bit if links.any else -1
                    known = at[end + 1].get(key)
                    if known is None or longest < known[0]:
                        at[end + 1][key] = longest, begin, (mask, last)
    best: dict[int, tuple[int, int]] = {}  # the state, by the number of its nodes
    for key, (busiest, _, _) in at[count].items():
        size = key[0].bit_count()
        if size not in best or busiest < at[count][best[size]][0]:
            best[size] = key
    found = []
    for _, state in sorted(best.items()):
        slots: list[PlanSlot] = []
        end = count
        while end:
            _, begin, (mask, last) = at[end][state]
            node = nodes[(state[0] ^ mask).bit_length() - 1]
            spent = sum(pace[node.node][stage - 1] for stage in wanted[begin:end])
            slots.append(slot_of(stages, wanted[begin], wanted[end - 1], node.node, spent))
            end, state = begin, (mask, last)
        found.append(tuple(reversed(slots)))
    return found


def _ways(
    wanted: Sequence[int],
    stages: Sequence[StageEstimate],
    nodes: Sequence[AutoNode],
    pace: Mapping[str, Sequence[float]],
    links: Crossings,
    dear: bool,
) -> list[tuple[PlanSlot, ...]]:
    """The wanted stages over some of these nodes, in order: for each number of slots, as far as
    there is room, the way whose busiest slot is the shortest. dear: whether slots may be longer on
    their node's link than they compute."""
    count = len(wanted)
    most = min(len(nodes), count)
    # reached[k][i]: the best way to have the first i stages on k slots with the nodes seen so far:
    # its busiest slot, and the slots.
    start: tuple[float, tuple[PlanSlot, ...]] = (0.0, ())
    reached: list[dict[int, tuple[float, tuple[PlanSlot, ...]]]] = [{0: start}]
    reached += [{} for _ in range(most)]
    for node in nodes:
        times = pace[node.node]
        for used in range(most - 1, -1, -1):
            for begin, (busiest, slots) in list(reached[used].items()):
                if begin == count:
                    continue
                spent, need, before, previous = 0.0, 0, busiest, None
                if links.any:
                    previous = (slots[-1].node, slots[-1].last) if slots else None
                    crosses = links.before(previous, node.node, wanted[begin])
                    before = max(before, crosses - HOP_US)
                for end in range(begin, count):
                    stage = wanted[end]
                    if end > begin and stage != wanted[end - 1] + 1:
                        break  # a stage that is named by hand lies between
                    spent += times[stage - 1]
                    need += stages[stage - 1].need
                    if need > node.room:
                        break
                    if not dear and links.is_dear(previous, node.node, wanted[begin], stage, spent):
                        continue
                    longest = max(before, spent)
                    if links.any and end == count - 1:
                        longest = max(longest, links.up(node.node, stage) - HOP_US)
                    known = reached[used + 1].get(end + 1)
                    if known is None or longest < known[0]:
                        slot = slot_of(stages, wanted[begin], stage, node.node, spent)
                        reached[used + 1][end + 1] = longest, (*slots, slot)
    return [row[count][1] for row in reached[1:] if count in row]


def slot_of(
    stages: Sequence[StageEstimate], first: int, last: int, node: str, spent: float
) -> PlanSlot:
    """These stages for a node that computes them for `spent` microseconds."""
    return PlanSlot(
        first,
        last,
        node,
        min(MOST_NUMBER, max(1, round(spent))),
        sum(stage.need for stage in stages[first - 1 : last]),
        link_bytes=stages[first - 1].receives + stages[last - 1].sends,
    )


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
