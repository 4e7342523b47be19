"""The published figures, on a few seeds."""

from __future__ import annotations

import pytest
from sim.gossip_report import (
    crash,
    false_positives,
    hang,
    join,
    split,
    spread,
    traffic,
)
from sim.gossip_world import World

from swarm.gossip import LAN, LOCAL, WAN, GossipConfig

pytestmark = pytest.mark.benchmark


@pytest.mark.parametrize("seed", [1, 2])
def test_a_change_reaches_a_thousand_nodes_in_twelve_rounds(seed: int) -> None:
    row = spread(1000, seed=seed, changes=1)
    assert row["met"], row


def test_a_change_reaches_all_nodes_in_twelve_rounds_when_one_message_in_five_is_lost() -> None:
    row = spread(100, loss=0.2, seed=3, changes=3)
    assert row["met"], row


def test_bytes_per_node_do_not_grow_with_the_fleet_at_a_constant_rate_of_change() -> None:
    small, large = traffic(100, rounds=8), traffic(600, rounds=8)
    assert large["bytes_per_node_per_round"] <= 1.2 * small["bytes_per_node_per_round"]
    assert large["messages_per_node_per_round"] <= 1.2 * small["messages_per_node_per_round"]


def test_bytes_per_node_grow_with_the_rate_of_change() -> None:
    """So that the test above measures what it says."""
    assert (
        traffic(40, changes=8)["bytes_per_node_per_round"]
        > 1.5 * traffic(40)["bytes_per_node_per_round"]
    )


@pytest.mark.parametrize("nodes", [4, 20, 100])
def test_a_crash_is_seen_by_a_peer_in_two_rounds_and_by_all_in_fourteen(nodes: int) -> None:
    row = crash(nodes, crashes=30, seed=5)
    assert row["met"], row


def test_a_thousand_nodes_know_of_a_crash_in_fourteen_rounds() -> None:
    row = crash(1000, crashes=2, seed=6)
    assert row["met"], row


def test_a_thousand_nodes_know_of_a_crash_in_fourteen_rounds_at_ten_percent_loss() -> None:
    row = crash(1000, crashes=1, loss=0.1, seed=7)
    assert row["all_rounds_p99"] is not None
    assert row["all_rounds_p99"] <= 14, row


@pytest.mark.parametrize("seed", [1, 2])
def test_nobody_is_declared_dead_at_ten_percent_loss(seed: int) -> None:
    row = false_positives(40, loss=0.1, rounds=200, seed=seed)
    assert row["met"], row


@pytest.mark.parametrize("config", [LOCAL, WAN])
def test_every_preset_tells_loss_from_death(config: GossipConfig) -> None:
    row = false_positives(20, loss=0.1, rounds=200, config=config)
    assert row["met"], row


@pytest.mark.slow
def test_nobody_is_declared_dead_in_seven_hundred_rounds_of_ten_percent_loss() -> None:
    row = false_positives(30, loss=0.1, rounds=700, seed=11)
    assert row["met"], row


def test_a_hung_node_is_suspected_then_dead_to_all() -> None:
    row = hang(30)
    assert row["first_suspected_rounds"] < row["first_died_rounds"] <= row["all_rounds"]
    assert row["first_suspected_rounds"] <= 10
    assert row["all_rounds"] <= 60


@pytest.mark.parametrize("cut", ["silent", "no_responders"])
@pytest.mark.parametrize("nodes", [2, 3, 12])
def test_a_split_mesh_heals_without_restarts(nodes: int, cut: str) -> None:
    row = split(nodes, cut, seed=2)  # type: ignore[arg-type]
    assert row["met"], row
    assert row["healed_rounds"] <= 30


@pytest.mark.slow
def test_a_split_of_a_hundred_nodes_heals() -> None:
    row = split(100, "no_responders", seed=3)
    assert row["met"], row


def test_a_newcomer_knows_three_hundred_nodes_within_twenty_rounds() -> None:
    rounds = join(300)["rounds"]
    assert rounds is not None
    assert rounds <= 20


def test_a_hundred_nodes_that_start_at_once_find_each_other_through_one() -> None:
    world = World(100, seed=4, warm=False)
    assert world.rounds_until(world.agree, 60) is not None
    assert world.largest <= LAN.message_bytes


def test_the_same_seed_gives_the_same_run() -> None:
    assert crash(20, crashes=5, loss=0.1, seed=9) == crash(20, crashes=5, loss=0.1, seed=9)
    assert crash(20, crashes=5, loss=0.1, seed=9) != crash(20, crashes=5, loss=0.1, seed=10)
