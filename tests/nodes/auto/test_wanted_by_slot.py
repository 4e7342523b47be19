"""A node of role auto wants nodes for its slot as a whole, and tells so for each of its stages."""

from __future__ import annotations

from nodes.auto.replicas import Replicas
from swarm.auto.auto_nodes import auto_nodes
from swarm.auto.document import PlanInForce, PlanSlot
from swarm.auto.slots import fill
from swarm.fleet.advertised import Where, busy_entries, load_entries, serves_entries
from swarm.fleet.documents import STATUS_FIELDS, Faults, form
from swarm.fleet.scaling import HIGH_FOR
from swarm.gossip import PeerView

PLAN = PlanInForce("m", "1", 1, (PlanSlot(1, 3, "a"), PlanSlot(4, 4, "b")))


def peer(node: str, stages: range, busy: float) -> PeerView:
    at: list[Where] = [("m", "1", stage) for stage in stages]
    values = {"role": "auto", "priority": 0, "room": 100, **serves_entries(at)}
    values |= busy_entries(dict.fromkeys(at, busy))
    values |= load_entries({where: [0, 0, 9000, *[0] * 5] for where in at})
    return PeerView(node, "alive", 1, 1, values)


def after(busy: float) -> tuple[Replicas, dict[str, int], list[PeerView]]:
    """Some seconds in which each stage computes for this share of the time."""
    peers = [peer("a", range(1, 4), busy), peer("b", range(4, 5), busy), peer("c", range(0), 0)]
    replicas, filled = Replicas(), fill(PLAN, auto_nodes(peers, "m", "1"))
    for tick in range(round(HIGH_FOR) + 2):
        replicas.look(PLAN, 4, filled, peers, float(tick))
    return replicas, filled, peers


def test_stages_that_keep_their_node_busy_together_want_another_one_and_say_so() -> None:
    replicas, filled, peers = after(busy=0.3)
    rows = replicas.rows(PLAN, 0)
    assert [(row["stage"], row["busy"], row["replicas"]) for row in rows] == [
        (1, 0.9, 2),
        (2, 0.9, 2),
        (3, 0.9, 2),
    ]
    assert [row["replicas"] for row in replicas.rows(PLAN, 1)] == [1]
    found = replicas.change(PLAN, filled, auto_nodes(peers, "m", "1"))
    assert found is not None
    assert (found.stage, found.replicas) == (1, 2)
    faults = Faults()
    assert form(STATUS_FIELDS)({"wanted": rows}, "", faults)["wanted"] == rows
    assert not faults.count


def test_stages_that_leave_their_node_time_want_no_other_one() -> None:
    replicas, filled, peers = after(busy=0.2)
    assert {row["replicas"] for row in replicas.rows(PLAN, 0)} == {1}
    assert replicas.change(PLAN, filled, auto_nodes(peers, "m", "1")) is None
