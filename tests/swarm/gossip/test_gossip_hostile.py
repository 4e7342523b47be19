"""Nothing that arrives raises, grows without bound, or makes a node believe what it should not."""

from __future__ import annotations

import time
import tracemalloc
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.gossip import Event, Gossip, GossipConfig, GossipRequest

KEY = b"the mesh's own secret key"


def syn(sender: str = "liar", incarnation: int = 1, **fields: Any) -> bytes:
    """A request as a peer in any language would write it."""
    head = {"v": 1, "t": "syn", "s": [sender, incarnation, 0, 0, 0, 7]}
    packed: bytes = msgpack.packb(head | fields)
    return packed


def a_node(**options: Any) -> Gossip:
    return Gossip("victim", 1, Random(1), **options)


def requests(effects: list[Any]) -> list[GossipRequest]:
    return [effect for effect in effects if isinstance(effect, GossipRequest)]


def delta(node: str, *items: list[Any], version: int = 1, base: int = 0) -> list[Any]:
    return [node, 1, 0, version, 0, base, 0, list(items)]


@settings(max_examples=300, deadline=None)
@given(payload=st.binary(max_size=300), keyed=st.booleans(), reply=st.booleans())
def test_random_bytes_are_counted_and_never_raise(payload: bytes, keyed: bool, reply: bool) -> None:
    node = a_node(mesh_key=KEY if keyed else None)
    if reply:
        node.add_peer("peer")
        token = requests(node.tick(0.0))[0].token
        node.on_reply(token, payload, 0.01)
    else:
        answer, _ = node.on_request(payload, 0.0)
        assert answer is None
    assert sum(node.counters[reason] for reason in ("malformed", "forged", "version")) == 1


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_change_to_an_authentic_message_is_accepted(data: st.DataObject) -> None:
    author = Gossip("author", 1, Random(2), mesh_key=KEY)
    author.set("load", 0.5, 0.0)
    author.add_peer("victim")
    payload = bytearray(requests(author.tick(0.0))[0].payload)
    position = data.draw(st.integers(0, len(payload) - 1))
    payload[position] ^= data.draw(st.integers(1, 255))
    node = a_node(mesh_key=KEY)
    assert node.on_request(bytes(payload), 0.0) == (None, [])
    assert node.counters["forged"] == 1


def test_members_with_the_same_key_understand_each_other_and_others_do_not() -> None:
    for theirs, accepted in ((KEY, True), (b"another key of this", False), (None, False)):
        author = Gossip("author", 1, Random(2), mesh_key=theirs)
        author.add_peer("victim")
        node = a_node(mesh_key=KEY)
        answer, _ = node.on_request(requests(author.tick(0.0))[0].payload, 0.0)
        assert (answer is not None) == accepted
        assert node.counters["forged"] == (not accepted)


def test_a_node_without_a_key_refuses_messages_with_one() -> None:
    author = Gossip("author", 1, Random(2), mesh_key=KEY)
    author.add_peer("victim")
    node = a_node()
    assert node.on_request(requests(author.tick(0.0))[0].payload, 0.0)[0] is None
    assert node.counters["malformed"] == 1


def test_a_message_of_64_mb_is_refused_unread() -> None:
    payload = syn() + bytes(64 * 2**20)
    node = a_node(mesh_key=KEY)
    tracemalloc.start()
    started = time.thread_time()  # of the processor: others want it too
    assert node.on_request(payload, 0.0) == (None, [])
    took, peak = time.thread_time() - started, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert node.counters == {"too_large": 1}
    assert took < 0.02
    assert peak < 100_000


def test_a_message_that_announces_huge_arrays_is_refused_before_they_are_made() -> None:
    bombs = [
        b"\x83\xa1v\x01\xa1t\xa3syn\xa1d\xdd\x7f\xff\xff\xff",
        b"\x81\xa1d" + b"\xdc\x01\x00" * 20_000,
        b"\x81\xa1d" + b"\x91" * 60_000,
        b"\xdf\x7f\xff\xff\xff",
        b"\x81\xa1v\xc6\x7f\xff\xff\xff",
    ]
    node = a_node()
    tracemalloc.start()
    for bomb in bombs:
        node.on_request(bomb, 0.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert node.counters["malformed"] == len(bombs)
    assert peak < 20_000_000


def test_a_newer_protocol_is_refused_by_name_and_unknown_fields_are_ignored() -> None:
    node = a_node()
    assert node.on_request(syn(v=2), 0.0) == (None, [])
    assert node.counters["version"] == 1
    answer, _ = node.on_request(syn(zz={"later": 1}), 0.0)
    assert answer is not None


def test_an_absurd_value_is_dropped_and_the_others_are_applied() -> None:
    def validator(key: str, value: object) -> bool:
        if key == "load":
            return isinstance(value, float) and 0 <= value <= 1
        return key != "bug" or bool(1 / 0)

    node = a_node(validator=validator)
    pack = msgpack.packb
    items = [
        ["load", 1, pack(1e300)],
        ["role", 2, pack("edge")],
        ["big", 3, pack(b"x" * 2000)],
        ["bad", 4, b"\xc1"],
        ["ext", 5, pack(msgpack.ExtType(5, b""))],
        ["deep", 6, pack([[[[[1]]]]])],
        ["bug", 7, pack(1)],
        ["map", 8, pack({"p99": 0.1})],
    ]
    node.on_request(syn(x=[delta("liar", *items, version=8)]), 0.0)
    peer = node.peer("liar", 0.0)
    assert peer is not None
    assert peer.values == {"role": "edge", "map": {"p99": 0.1}}
    assert peer.version == 8
    assert node.counters["value_too_large"] == 1
    assert node.counters["value_malformed"] == 1
    assert node.counters["value_invalid"] == 4
    assert node.counters["validator_failed"] == 1
    # A later valid value of a key that was refused is taken.
    node.on_request(syn(x=[delta("liar", ["load", 9, pack(0.5)], version=9, base=8)]), 0.0)
    seen = node.peer("liar", 0.0)
    assert seen is not None
    assert seen.values["load"] == 0.5


def test_a_node_with_too_many_keys_or_bytes_is_not_believed() -> None:
    node = a_node()
    many = [[f"k{i}", i + 1, b"\x01"] for i in range(65)]
    node.on_request(syn(x=[delta("liar", *many, version=65)]), 0.0)
    assert node.counters["too_many_keys"] == 1
    heavy = [[f"k{i}", i + 1, msgpack.packb(b"x" * 1000)] for i in range(20)]
    node.on_request(syn(x=[delta("liar", *heavy, version=20)]), 0.0)
    assert node.counters["state_too_large"] == 1


def test_ten_thousand_joins_and_departures_a_second_neither_stall_nor_fill_the_memory() -> None:
    config = GossipConfig(max_nodes=500, learn_rate=1000)
    node = a_node(config=config)

    def second(start: int) -> int:
        effects = 0
        for i in range(start, start + 10_000):
            name = f"ghost-{i}"
            now = i / 10_000
            effects += len(node.on_request(syn(name, x=[delta(name)]), now)[1])
            left = msgpack.packb({"v": 1, "t": "ack", "s": [name, 1, 0, 0, 3, 7]})
            effects += len(node.on_request(left, now)[1])
            if i % 1000 == 0:
                for effect in requests(node.tick(now)):
                    node.on_no_responders(effect.token, now)
        return effects

    started = time.process_time()
    second(0)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    effects = second(10_000)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(node.view(2.0)) <= 500
    assert len(node.states()) > 400, "the flood did fill the table"
    assert node.counters["table_full"] + node.counters["too_fast"] > 1000
    assert effects < 25_000, "at most about one effect a message"
    assert grown < 1_000_000
    assert time.process_time() - started < 15
    # It still serves an honest newcomer once the flood is over and the ghosts are found out.
    for turn in range(400):
        now = 3.0 + turn / 10
        for effect in requests(node.tick(now)):
            node.on_no_responders(effect.token, now)
    node.on_request(syn("honest", x=[delta("honest")]), 50.0)
    newcomer = node.peer("honest", 50.0)
    assert newcomer is not None
    assert newcomer.state == "alive"


@pytest.mark.parametrize("status", [2, 3])
@pytest.mark.parametrize("incarnation", [1, 2**60])
def test_one_lying_peer_cannot_kill_or_retire_another(
    mesh: Any, deliver: Any, status: int, incarnation: int
) -> None:
    nodes = mesh("a", "b", "c")
    lie = syn("b", d=[["c", incarnation, 0, 0, status]])
    _, effects = nodes["a"].on_request(lie, 1.0)
    events = deliver(nodes, "a", effects, 1.0)
    view = nodes["a"].peer("c", 1.0)
    assert view.state == "alive"
    assert not [e for _, e in events if e.kind in ("died", "left")]
    assert nodes["a"].counters["claims_rejected"] == 1


def test_a_peer_that_lies_about_a_silent_node_only_starts_our_own_suspicion(
    mesh: Any, deliver: Any
) -> None:
    nodes = mesh("a", "b", "c")
    _, effects = nodes["a"].on_request(syn("b", d=[["c", 1, 0, 0, 2]]), 1.0)
    deliver(nodes, "a", effects, 1.0, silent=("c",))
    assert nodes["a"].peer("c", 1.0).state == "suspect"


def test_what_a_liar_writes_in_another_nodes_name_is_overwritten_by_it(
    mesh: Any, deliver: Any
) -> None:
    nodes = mesh("a", "b", "c")
    nodes["c"].set("load", 0.1, 1.0)
    forged = [["c", 1, 0, 2**62, 0, 0, 0, [["load", 2**62, msgpack.packb(99)]]]]
    nodes["a"].on_request(syn("b", x=forged), 1.0)
    assert nodes["a"].peer("c", 1.0).values == {"load": 99}
    events = []
    for turn in range(30):
        for name in "abc":
            now = 1.0 + turn / 10
            events += deliver(nodes, name, nodes[name].tick(now), now)
    for name in "abc":
        assert nodes[name].peer("c", 4.0).values == {"load": 0.1}
    assert ("c", "duplicate") in [(e.node, e.kind) for _, e in events]


def test_a_incarnation_that_nobody_answers_for_is_not_adopted(mesh: Any, deliver: Any) -> None:
    nodes = mesh("a", "b", "c")
    _, effects = nodes["a"].on_request(syn("b", d=[["c", 2**62, 0, 0, 0]]), 1.0)
    deliver(nodes, "a", effects, 1.0)
    assert nodes["a"].peer("c", 1.0).incarnation == 1


def test_one_liar_makes_a_node_take_at_most_one_incarnation_a_second(mesh: Any) -> None:
    nodes = mesh("a", "b")
    for i in range(1000):
        incarnation = nodes["b"].peer("b", 1.0).incarnation
        nodes["b"].on_request(syn("a", d=[["b", incarnation, 0, 0, 2]]), 1.0 + i / 1000)
    assert nodes["b"].peer("b", 2.0).incarnation == 2
    assert nodes["b"].counters["rebirths"] == 1


def test_claims_beyond_a_rounds_share_are_put_off(mesh: Any) -> None:
    config = GossipConfig(claims_per_round=4)
    nodes = mesh(*(f"n{i}" for i in range(10)), config=config)
    node = nodes["n0"]
    node.tick(1.0)
    claims = [[f"n{i}", 1, 0, 0, 2] for i in range(2, 10)]
    _, effects = node.on_request(syn("n1", d=claims), 1.0)
    assert len(requests(effects)) == 4
    assert node.counters["claims_deferred"] == 4


@pytest.mark.parametrize("incarnation", [1, 5])
def test_two_processes_with_one_id_are_noticed_by_a_peer(
    make: Any, deliver: Any, incarnation: int
) -> None:
    peer = make("peer")
    events: list[Event] = []
    twins = [make("twin", incarnation=1, instance=1), make("twin", incarnation, instance=2)]
    for turn in range(4):
        twin = twins[turn % 2]
        twin.add_peer("peer")
        now = turn / 10
        nodes = {"peer": peer, "twin": twin}
        events += [e for _, e in deliver(nodes, "twin", twin.tick(now), now)]
    assert peer.counters["duplicate_node"] >= 1
    assert "duplicate" in [e.kind for e in events if e.node == "twin"]
    assert len([e for e in events if e.kind == "duplicate"]) < 6, "reported, not at every message"


@pytest.mark.parametrize("left", [True, False], ids=["left", "died"])
def test_a_node_whose_clock_was_set_back_lives_on_and_is_no_duplicate(
    mesh: Any, make: Any, deliver: Any, left: bool
) -> None:
    ahead = 1_000_000
    nodes = mesh("a", "b")
    nodes["c"] = make("c", incarnation=ahead)
    nodes["c"].add_peer("a")

    def turns(seconds: range) -> list[tuple[str, Event]]:
        events = []
        for tenth in seconds:
            for name in tuple(nodes):
                events += deliver(nodes, name, nodes[name].tick(tenth / 10), tenth / 10)
        return events

    turns(range(10, 60))
    if left:
        deliver(nodes, "c", nodes["c"].leave(6.0), 6.0)
    del nodes["c"]
    turns(range(60, 120))
    assert nodes["a"].peer("c", 12.0).state in ("left", "dead")
    nodes["c"] = make("c", incarnation=10, instance=2)
    nodes["c"].add_peer("a")
    turns(range(120, 150))
    later = turns(range(150, 250))
    assert nodes["a"].peer("c", 25.0).incarnation == ahead + 1
    assert {nodes[name].peer("c", 25.0).state for name in "abc"} == {"alive"}
    assert [event for _, event in later if event.kind == "duplicate"] == []


def test_two_processes_that_hear_of_each_other_do_not_race_for_the_highest_incarnation(
    make: Any,
) -> None:
    twins = [make("twin", incarnation=5, instance=1), make("twin", incarnation=9, instance=2)]
    for turn in range(40):
        known = twins[(turn + 1) % 2].peer("twin", float(turn)).incarnation
        twins[turn % 2].on_request(syn("a", d=[["twin", known, 0, 0, 0]]), float(turn))
    assert max(twin.peer("twin", 40.0).incarnation for twin in twins) <= 12
    assert twins[0].counters["duplicate_self"] + twins[1].counters["duplicate_self"] > 10


def test_a_process_notices_another_with_its_own_id(make: Any) -> None:
    first, second = make("twin", instance=1), make("twin", instance=2)
    second.add_peer("twin2")
    payload = requests(second.tick(0.0))[0].payload
    answer, effects = first.on_request(payload, 0.0)
    assert answer is None
    assert [e.kind for e in effects if isinstance(e, Event)] == ["duplicate"]
    assert first.counters["duplicate_self"] == 1
    assert second.on_request(payload, 0.0) == (None, [])
    assert second.counters == {"own_message": 1}


def test_an_answer_in_another_nodes_name_counts_as_none(make: Any) -> None:
    node = make("a")
    node.add_peer("b")
    token = requests(node.tick(0.0))[0].token
    node.on_reply(token, syn("c", t="synack"), 0.01)
    assert node.counters["wrong_sender"] == 1
    assert node.on_reply(token, syn("b", t="synack"), 0.01) == []
    assert node.counters["late"] == 1


def test_an_answer_on_the_request_subject_and_outcomes_of_unknown_tokens_are_only_counted(
    make: Any,
) -> None:
    node = make("a")
    assert node.on_request(syn("b", t="synack"), 0.0) == (None, [])
    assert node.counters["wrong_kind"] == 1
    assert node.on_timeout(99, 0.0) == node.on_no_responders(99, 0.0) == []
    assert node.counters["late"] == 2


def test_a_driver_that_never_reports_outcomes_cannot_fill_the_memory(make: Any) -> None:
    node = make("a")
    node.add_peer("b")
    for turn in range(5000):
        node.tick(turn / 10)
    assert node.counters["outcomes_missing"] == 5000 - 4096
