"""Copies are the same bits as their originals wherever sequence numbers agree, whatever a network
does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from learning_fleet import EAGER, LAYOUT, Fleet

from swarm.learning.consensus.layout import Layout, digest_of
from swarm.learning.consensus.options import LearningOptions
from swarm.learning.consensus.participant import ASK_EVERY_MOST, LAG

STEP, MIX, DELIVER, REPEAT, LOSE, RESTART, LEAVE, TEND = range(8)
USUAL = [STEP] * 6 + [DELIVER] * 9
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            [STEP] * 6 + [DELIVER] * 9 + [MIX, REPEAT, REPEAT, LOSE, RESTART, LEAVE, TEND]
        ),
        st.integers(0, 2**16),
    ),
    min_size=40,
    max_size=80,
)


def check(fleet: Fleet) -> None:
    """Each copy equals its original as it was at the copy's number, bit by bit."""
    for node in fleet.nodes.values():
        for peer in node.followed:
            copy = node.copy_of(peer)
            assert copy is not None
            assert digest_of(copy[2]) == fleet.published[peer, copy[0], copy[1]]


def play(fleet: Fleet, action: int, number: int) -> None:
    names = sorted(fleet.nodes)
    name = names[number % len(names)]
    at = number % len(fleet.wire) if fleet.wire else 0
    fleet.now += 0.01
    if action == STEP:
        change = np.random.default_rng(number).normal(0, 1, LAYOUT.size)
        fleet.step(name, change.astype(np.float32))
    elif action == MIX:
        fleet.do(name, fleet.nodes[name].mix(fleet.now))
    elif action == TEND:
        fleet.now += ASK_EVERY_MOST
        fleet.do(name, fleet.nodes[name].tend(fleet.now))
    elif action == RESTART:
        fleet.start(name)
        fleet.meet()
    elif action == LEAVE:
        # It goes without a word; another one with a new name comes.
        del fleet.nodes[name]
        fleet.start(f"node-{len(fleet.identities)}")
        fleet.meet()
    elif fleet.wire and action in (DELIVER, REPEAT):
        fleet.deliver(at, keep=action == REPEAT)
    elif fleet.wire and action == LOSE:
        fleet.wire.pop(at)


@pytest.mark.parametrize("half", [True, False])
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(ACTIONS)
def test_copies_stay_in_lock_step_under_loss_repeats_reordering_and_churn(
    half: bool, actions: list[tuple[int, int]]
) -> None:
    options = LearningOptions(
        share=0.25, half=half, messages_per_s=1e6, snapshots_per_s=1e6, graph="complete"
    )
    fleet = Fleet(3, options)
    fleet.settle()
    for action, number in actions:
        play(fleet, action, number)
        check(fleet)
    # Whatever was lost, some quiet seconds later everybody follows everybody, to the last delta.
    fleet.settle()
    for _ in range(3):
        fleet.now += ASK_EVERY_MOST + LAG
        for name in sorted(fleet.nodes):
            fleet.do(name, fleet.nodes[name].tend(fleet.now))
            for other, original in fleet.nodes.items():
                if other != name:
                    fleet.do(name, fleet.nodes[name].heard_of(other, *original.position, fleet.now))
        fleet.settle()
    check(fleet)
    for node in fleet.nodes.values():
        assert node.followed == fleet.nodes.keys() - {node.node}
        for peer in node.followed:
            copy = node.copy_of(peer)
            assert copy is not None
            assert copy[:2] == fleet.nodes[peer].position


def test_a_lost_last_delta_is_asked_for_when_gossip_tells_of_it() -> None:
    fleet = Fleet(2)
    fleet.settle()
    fleet.step("node-0", np.ones(LAYOUT.size, np.float32))
    fleet.wire.clear()
    one, other = fleet.nodes["node-0"], fleet.nodes["node-1"]
    assert other.heard_of("node-0", *one.position, fleet.now) == []  # it may be on its way
    fleet.now += LAG
    fleet.do("node-1", other.heard_of("node-0", *one.position, fleet.now))
    fleet.settle()
    copy = other.copy_of("node-0")
    assert copy is not None
    assert copy[:2] == one.position
    assert np.array_equal(copy[2], one.estimate)


def test_deltas_that_come_before_their_snapshot_are_not_lost() -> None:
    fleet = Fleet(2)
    question = next(e for e in fleet.wire if e.kind == "ask" and e.sender == "node-1")
    answer = fleet.nodes["node-0"].on_request(question.payload, fleet.now)
    assert isinstance(answer, bytes)
    fleet.wire.clear()
    for _ in range(3):
        fleet.step("node-0", np.ones(LAYOUT.size, np.float32))
    fleet.settle()
    assert fleet.nodes["node-1"].copy_of("node-0") is None
    fleet.do("node-1", fleet.nodes["node-1"].on_snapshot("node-0", answer, fleet.now))
    copy = fleet.nodes["node-1"].copy_of("node-0")
    assert copy is not None
    assert copy[:2] == fleet.nodes["node-0"].position
    check(fleet)


def test_large_deltas_and_snapshots_go_by_reference_and_stay_in_lock_step() -> None:
    large = Layout({"weight": (300, 1000)})
    fleet = Fleet(2, LearningOptions(share=1.0, bytes_per_delta=1 << 24, half=False), large)
    fleet.settle()
    rng = np.random.default_rng(1)
    for _ in range(3):
        fleet.step("node-0", rng.normal(0, 1, large.size).astype(np.float32))
        assert all(len(envelope.payload) < 2048 for envelope in fleet.wire)
        fleet.settle()
    check(fleet)
    fleet.start("node-1")
    fleet.meet()
    fleet.settle()
    check(fleet)
    kinds = [fetch.message.kind for _, fetch in fleet.fetches]
    assert kinds.count("delta") == 3
    assert "snapshot" in kinds
    copy = fleet.nodes["node-1"].copy_of("node-0")
    assert copy is not None
    assert np.array_equal(copy[2], fleet.nodes["node-0"].estimate)


def test_after_a_rollback_deltas_of_the_epoch_before_are_void() -> None:
    fleet = Fleet(2)
    fleet.settle()
    fleet.step("node-0", np.ones(LAYOUT.size, np.float32))
    start = np.full(LAYOUT.size, 0.5, np.float32)
    fleet.do("node-1", fleet.nodes["node-1"].reset(start, 1, fleet.now))
    fleet.settle()
    assert np.array_equal(fleet.nodes["node-1"].x, start)
    assert fleet.nodes["node-1"].refusals.by_sender()["node-0"]["other_epoch"] >= 1
    fleet.do("node-0", fleet.nodes["node-0"].reset(start, 1, fleet.now))
    fleet.now += ASK_EVERY_MOST
    for name in ("node-0", "node-1"):
        fleet.do(name, fleet.nodes[name].tend(fleet.now))
    fleet.settle()
    assert all(node.followed for node in fleet.nodes.values())
    with pytest.raises(ValueError, match="not after"):
        fleet.nodes["node-0"].reset(start, 1, fleet.now)


def test_a_newcomer_begins_at_the_middle_of_its_neighbours() -> None:
    fleet = Fleet(4, EAGER)
    fleet.settle()
    for number in range(3):
        for _ in range(40):
            towards = np.float32(number + 1) - fleet.nodes[f"node-{number}"].x
            fleet.nodes[f"node-{number}"].step(towards, fleet.now)
            fleet.record(f"node-{number}")
    fleet.wire.clear()
    newcomer = fleet.start("node-3")
    fleet.meet()
    fleet.settle()
    assert newcomer.catch_up()
    middle = np.median([fleet.nodes[f"node-{n}"].estimate for n in range(3)], axis=0)
    assert np.allclose(newcomer.x, middle)
    assert newcomer.followed == {"node-0", "node-1", "node-2"}
