"""Leaving, dying, being doubted, coming back: and never as a ghost."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from sim.gossip_world import World

from swarm.gossip import GossipConfig, GossipRequest


def about(world: World, name: str, *kinds: str) -> list[str]:
    return [e.kind for _, _, e in world.events if e.node == name and e.kind in kinds]


def test_nobody_there_to_answer_means_death_at_once(mesh: Any, deliver: Any) -> None:
    nodes = mesh("a", "b", "c")
    del nodes["c"]
    events = deliver(nodes, "a", nodes["a"].tick(1.0), 1.0)
    assert ("a", "died", "c") in [(who, e.kind, e.node) for who, e in events]
    assert nodes["a"].peer("c", 1.0).state == "dead"
    assert nodes["a"].peer("c", 1.0).values == {}


def test_silence_is_suspected_only_after_helpers_failed_too(mesh: Any, deliver: Any) -> None:
    nodes = mesh("a", "b", "c", "d")
    request = next(
        e for e in nodes["a"].tick(1.0) if isinstance(e, GossipRequest) and e.peer == "c"
    )
    effects = nodes["a"].on_timeout(request.token, 1.1)
    assert sorted(type(e).__name__ for e in effects) == ["GossipRequest", "Send", "Send"]
    assert nodes["a"].peer("c", 1.1).state == "alive"
    assert nodes["a"].peer("c", 1.1).phi > 1
    # The helpers reach it although we cannot.
    retry = effects.pop()
    assert isinstance(retry, GossipRequest)
    deliver(nodes, "a", effects, 1.1)
    assert nodes["a"].on_timeout(retry.token, 1.3) != [], "a new doubt begins: helpers again"
    assert nodes["a"].peer("c", 1.3).state == "alive"


def test_a_hung_node_that_goes_on_refutes_the_suspicion_of_it() -> None:
    world = World(10, seed=1)
    world.run(3)
    name = list(world.nodes)[4]
    world.pause(name, 2.0)
    world.run(9)
    assert world.seeing(name, "suspect") > 0
    world.run(20)
    assert world.seeing(name, "alive") == 9
    assert about(world, name, "died") == []
    assert "refuted" in about(world, name, "refuted")
    assert world.nodes[name].gossip.counters["paused"] == 1


def test_a_node_that_was_stopped_does_not_blame_its_peers() -> None:
    world = World(10, seed=1)
    world.run(3)
    name = list(world.nodes)[4]
    world.pause(name, 2.0)
    world.run(60)
    blamed = [e.kind for _, who, e in world.events if who == name]
    assert "suspected" not in blamed
    assert "died" not in blamed


def test_a_living_node_that_was_declared_dead_comes_back_with_a_new_incarnation() -> None:
    world = World(10, seed=2)
    world.run(3)
    name = list(world.nodes)[4]
    world.set(name, "role", "edge")
    world.pause(name, 20.0)
    assert world.rounds_until(lambda: world.seeing(name, "dead") == 9, 100) is not None
    world.run(200)
    assert world.rounds_until(world.agree, 30) is not None
    assert world.knowing(name, "role", "edge") == 10
    peer = world.alive()[0].gossip.peer(name, 0.0)
    assert peer is not None
    assert peer.incarnation == 2
    assert about(world, name, "returned") == ["returned"] * 9


def test_a_stale_node_cannot_raise_the_dead() -> None:
    """One node sleeps through another's death, and wakes up believing it alive."""
    world = World(10, seed=3)
    world.run(3)
    sleeper, victim = list(world.nodes)[2:4]
    world.pause(sleeper, 12.0)
    world.run(2)
    world.crash(victim)
    assert world.rounds_until(lambda: world.seeing(victim, "dead") == 8, 20) is not None
    deaths = len(about(world, victim, "died"))
    world.run(130)
    assert world.rounds_until(world.agree, 30) is not None
    assert about(world, victim, "returned", "joined") == []
    assert len(about(world, victim, "died")) == deaths + 1, "only the sleeper learned anything"


def test_a_sleep_longer_than_the_tombstones_raises_no_ghost_either() -> None:
    world = World(10, seed=4, config=GossipConfig(tombstone=4.0))
    world.run(3)
    sleeper, victim = list(world.nodes)[2:4]
    world.pause(sleeper, 20.0)
    world.run(2)
    world.crash(victim)
    world.run(150)
    assert all(n.gossip.peer(victim, 0.0) is None for n in world.alive()), "forgotten by all"
    seen = set()
    for _ in range(150):
        world.run(1)
        for node in world.alive():
            peer = node.gossip.peer(victim, world.now + node.clock)
            seen.add(peer.state if peer else None)
    assert seen == {None}
    assert world.agree()


def test_a_third_partys_word_revives_nobody(mesh: Any, deliver: Any) -> None:
    nodes = mesh("a", "b", "c")
    gone = nodes.pop("c")
    deliver(nodes, "a", nodes["a"].tick(1.0), 1.0)
    assert nodes["a"].peer("c", 1.0).state == "dead"
    head = {"v": 1, "t": "syn", "s": ["b", 1, 0, 0, 0, 1]}
    for incarnation in (1, 2, 2**40):
        lie = msgpack.packb(
            head
            | {
                "d": [["c", incarnation, 9, 9, 0]],
                "x": [["c", incarnation, 9, 9, 0, 0, 0, [["k", 9, b"\x01"]]]],
            }
        )
        _, effects = nodes["a"].on_request(lie, 2.0)
        deliver(nodes, "a", effects, 2.0)
        assert nodes["a"].peer("c", 2.0).state == "dead"
        assert nodes["a"].peer("c", 2.0).values == {}
    assert gone.peer("c", 2.0).state == "alive"


def test_a_node_that_restarts_under_a_new_id_joins_while_its_old_one_stays_dead() -> None:
    world = World(10, seed=5)
    world.run(3)
    names = list(world.nodes)
    world.crash(names[3])
    fresh = world.join(names[0])
    assert world.rounds_until(world.agree, 30) is not None
    # Who comes when it is dead may never hear of it.
    assert world.seeing(names[3], "dead") in (9, 10)
    assert world.seeing(names[3], "alive") == world.seeing(names[3], "suspect") == 0
    assert world.seeing(fresh, "alive") == 9


def test_leaving_is_announced_and_is_not_a_death() -> None:
    world = World(50, seed=6)
    world.run(3)
    name = list(world.nodes)[7]
    world.leave(name)
    rounds = world.rounds_until(lambda: world.seeing(name, "left") == 49, 14)
    assert rounds is not None
    assert about(world, name, "died") == []
    assert about(world, name, "left") == ["left"] * 49


def test_a_node_that_left_starts_nothing_more(mesh: Any) -> None:
    nodes = mesh("a", "b")
    assert nodes["a"].leave(1.0)
    assert nodes["a"].tick(1.1) == []
    assert nodes["a"].peer("a", 1.1).state == "left"


def test_tombstones_expire_and_the_id_may_be_used_again(mesh: Any, deliver: Any, make: Any) -> None:
    nodes = mesh("a", "b", "c", config=GossipConfig(tombstone=5.0, pause_rounds=1000))
    del nodes["c"]
    for turn in range(10):
        for name in "ab":
            deliver(nodes, name, nodes[name].tick(1 + turn / 10), 1 + turn / 10)
    assert nodes["a"].peer("c", 3.0).state == "dead"
    deliver(nodes, "a", nodes["a"].tick(7.5), 7.5)
    assert nodes["a"].peer("c", 7.5) is None


def test_when_the_first_peer_is_late_the_newcomer_keeps_asking(make: Any, deliver: Any) -> None:
    newcomer, first = make("newcomer"), make("first")
    newcomer.add_peer("first")
    nodes = {"newcomer": newcomer}
    for turn in range(50):
        deliver(nodes, "newcomer", newcomer.tick(turn / 10), turn / 10)
    assert newcomer.peer("first", 5.0) is None
    nodes["first"] = first
    deliver(nodes, "newcomer", newcomer.tick(5.1), 5.1)
    assert newcomer.peer("first", 5.1).state == "alive"
    assert first.peer("newcomer", 5.1).state == "alive"


def test_a_first_peer_that_never_answers_is_given_up_once_others_are_known(
    mesh: Any, deliver: Any
) -> None:
    nodes = mesh("a", "b")
    nodes["a"].add_peer("nobody")
    for turn in range(12):
        deliver(nodes, "a", nodes["a"].tick(1 + turn / 10), 1 + turn / 10)
    assert nodes["a"].counters["seeds_lost"] == 1


@pytest.mark.parametrize("seed", range(3))
def test_both_halves_of_a_split_keep_their_own_changes_and_share_them_after(seed: int) -> None:
    world = World(12, seed=seed)
    world.run(3)
    names = list(world.nodes)
    world.split(names[:4], "no_responders")
    world.run(15)
    assert all(world.seeing(name, "dead") == 8 for name in names[:4])
    world.set(names[0], "side", "small")
    world.set(names[-1], "side", "large")
    world.crash(names[1])
    world.run(30)
    world.heal()
    assert world.rounds_until(world.agree, 40) is not None
    assert world.knowing(names[0], "side", "small") == 11
    assert world.knowing(names[-1], "side", "large") == 11
    world.run(50)
    assert world.seeing(names[1], "dead") == 11, "who died meanwhile stays dead"


def test_a_split_that_outlasts_the_tombstones_heals_when_told_of_one_peer() -> None:
    world = World(6, seed=1, config=GossipConfig(tombstone=2.0))
    world.run(3)
    names = list(world.nodes)
    world.split(names[:3], "no_responders")
    world.run(60)
    world.heal()
    world.run(20)
    assert world.seeing(names[0], "alive") == 2, "each half has forgotten the other"
    world.nodes[names[0]].gossip.add_peer(names[5])
    assert world.rounds_until(world.agree, 40) is not None


def to(effects: list[Any], peer: str) -> GossipRequest:
    return next(e for e in effects if isinstance(e, GossipRequest) and e.peer == peer)


def test_one_silence_seen_by_two_requests_counts_once(mesh: Any) -> None:
    nodes = mesh("a", "b", "c")
    first = to(nodes["a"].tick(1.0), "c")
    claim = msgpack.packb({"v": 1, "t": "syn", "s": ["b", 1, 0, 0, 0, 1], "d": [["c", 1, 0, 0, 2]]})
    second = to(nodes["a"].on_request(claim, 1.0)[1], "c")
    again = to(nodes["a"].on_timeout(first.token, 1.1), "c")
    assert nodes["a"].on_timeout(second.token, 1.1) == []
    assert nodes["a"].peer("c", 1.1).state == "alive"
    nodes["a"].on_timeout(again.token, 1.3)
    assert nodes["a"].peer("c", 1.3).state == "suspect"


def test_a_suspicion_is_told_only_after_repeated_failures(mesh: Any) -> None:
    nodes = mesh("a", "b", "c")
    node = nodes["a"]
    again = to(node.on_timeout(to(node.tick(1.0), "c").token, 1.1), "c")
    told = []
    for attempt in range(3):
        node.on_timeout(again.token, 1.3 + attempt / 10)
        assert node.peer("c", 1.3).state == "suspect"
        told.append(next(s.status for s in node.states() if s.node == "c"))
        again = to(node.tick(1.31 + attempt / 10), "c")
    assert told == [0, 0, 1]


def test_after_a_missed_answer_we_wait_longer_until_peers_answer_again(
    mesh: Any, deliver: Any
) -> None:
    nodes = mesh("a", "b", "c")
    node = nodes["a"]
    calm = to(node.tick(1.0), "b").timeout
    node.on_timeout(to(node.tick(1.1), "c").token, 1.2)
    effects = node.tick(1.3)
    assert to(effects, "b").timeout == pytest.approx(2 * calm)
    deliver(nodes, "a", effects, 1.3)
    assert to(node.tick(1.7), "b").timeout == pytest.approx(calm)


def test_a_timeout_that_is_noticed_after_our_own_pause_starts_no_doubt(mesh: Any) -> None:
    node = mesh("a", "b", "c")["a"]
    request = to(node.tick(1.0), "c")
    assert node.on_timeout(request.token, 9.0) == []
    assert node.peer("c", 9.0).phi == 0


def test_an_exchange_ends_after_four_messages(make: Any) -> None:
    """A final difference from a stranger is taken, and not answered with questions."""
    ack = msgpack.packb({"v": 1, "t": "ack", "s": ["stranger", 1, 0, 5, 0, 1]})
    assert make("a").on_request(ack, 0.0) == (None, [])
