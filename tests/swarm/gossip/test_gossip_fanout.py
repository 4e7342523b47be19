"""A large and quiet fleet gossips little, and still sees at once the crashes that matter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim.gossip_report import crash, spread, traffic
from sim.gossip_world import World

from swarm.gossip import LAN
from swarm.gossip.fanout import (
    LEAST_PER_SECOND,
    MOST_WATCHED,
    WATCH_ROUNDS,
    Fanout,
    WatchedPeers,
    calm_contacts,
    least_window,
)


@given(st.integers(2, LAN.calm_above), st.floats(0, 1))
def test_a_small_fleet_is_at_full_pace(alive: int, start: float) -> None:
    assert Fanout(LAN, start).contacts(alive, repairing=False) == LAN.fanout


@given(st.integers(LAN.calm_above + 1, 4000), st.floats(0, 1))
def test_a_large_fleet_shares_the_traffic_of_a_small_one_and_nobody_falls_silent(
    alive: int, start: float
) -> None:
    fanout, rounds = Fanout(LAN, start), 500
    made = sum(fanout.contacts(alive, repairing=False) for _ in range(rounds))
    usual = max(
        LAN.fanout * LAN.calm_above / alive * rounds, LEAST_PER_SECOND * LAN.interval * rounds
    )
    assert abs(made - usual) <= 1 + start


@given(st.integers(LAN.calm_above + 1, 4000))
def test_news_brings_the_full_pace_back_for_some_rounds(alive: int) -> None:
    fanout = Fanout(LAN, 0.0)
    fanout.hurry(alive)
    made = [fanout.contacts(alive, repairing=False) for _ in range(40)]
    full = next(index for index, count in enumerate(made) if count < LAN.fanout)
    assert 3 <= full <= 10
    assert fanout.contacts(alive, repairing=True) == LAN.fanout


@given(st.integers(2, 4000))
def test_a_calm_fleet_compares_as_many_nodes_a_round_as_one_at_full_pace(alive: int) -> None:
    window, contacts = least_window(LAN, alive), min(1.0, calm_contacts(LAN, alive))
    assert window == LAN.window_max or window * contacts >= LAN.window_min
    assert window < LAN.window_min / contacts + LAN.window_min
    assert alive > LAN.calm_above or window == LAN.window_min


def test_watched_nodes_are_checked_every_other_round_and_each_has_its_turn() -> None:
    watch = WatchedPeers(LAN.interval)
    watch.set(frozenset({"a", "b"}))
    assert sorted(watch.due(0.0)) == ["a", "b"]
    assert watch.due(LAN.interval) == []
    assert sorted(watch.due(WATCH_ROUNDS * LAN.interval)) == ["a", "b"]
    many = frozenset(f"n{number}" for number in range(3 * MOST_WATCHED))
    watch.set(many)
    seen = [node for number in range(3) for node in watch.due(10.0 + number * LAN.interval)]
    assert sorted(seen) == sorted(many)
    watch.set(frozenset())
    assert watch.due(100.0) == []


def test_whoever_watches_a_node_knows_of_its_crash_within_four_rounds() -> None:
    world = World(200, seed=3)
    names = list(world.nodes)
    watcher = world.nodes[names[0]].gossip
    for victim in names[1:6]:
        watcher.watch(frozenset({victim}))
        world.run(40)  # until it is quiet again
        world.crash(victim)

        def known(victim: str = victim) -> bool:
            peer = watcher.peer(victim, world.now)
            return peer is not None and peer.state == "dead"

        taken = world.rounds_until(known, 60)
        assert taken is not None
        assert taken <= 4


@pytest.mark.benchmark  # a whole story, longer than ten seconds
def test_a_thousand_quiet_nodes_know_of_a_crash_and_of_a_change_in_eight_seconds() -> None:
    assert crash(1000, crashes=2, seed=6, config=LAN)["met"]
    assert spread(1000, seed=1, changes=1, config=LAN)["met"]


def test_a_quiet_thousand_sends_a_tenth_of_the_messages_of_full_pace() -> None:
    row = traffic(1000, rounds=10)
    assert row["messages_per_node_per_round"] <= 0.6


def test_each_node_knows_how_many_live_before_it_knows_others_too() -> None:
    world = World(12, seed=3)
    gone, newcomer = list(world.nodes)[4], world.join(None)
    assert world.nodes[newcomer].gossip.alive == 1, "itself"
    world.crash(gone)
    world.run(30)
    counts = {n.gossip.alive for n in world.nodes.values() if n.up and n.name != newcomer}
    assert counts == {11}
