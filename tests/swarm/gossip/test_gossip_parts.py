"""The parts by themselves: values, deltas, the table, the formulas, the settings."""

from __future__ import annotations

import math
from dataclasses import fields
from random import Random
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import swarm.gossip
from swarm.gossip import LAN, LOCAL, WAN, Gossip, GossipConfig, GossipRequest
from swarm.gossip.exchange import plain
from swarm.gossip.health import LocalHealth, suspicion_seconds
from swarm.gossip.phi import PhiDetector, deviations
from swarm.gossip.rumours import Rumours
from swarm.gossip.state import LEFT, Delta, NodeState, apply
from swarm.gossip.table import Table
from swarm.gossip.wire import BoundedMessage, decode


def read(_key: str, packed: bytes | None) -> tuple[bool, object]:
    return True, None if packed is None else msgpack.unpackb(packed)


def unpack_delta(packed: bytes) -> Delta:
    raw = msgpack.unpackb(packed, use_list=False)
    return Delta(raw[:5], raw[5], raw[6], raw[7])


def test_the_public_surface_is_what_it_is() -> None:
    assert swarm.gossip.__all__ == [
        "LAN",
        "LOCAL",
        "WAN",
        "Effect",
        "Event",
        "Gossip",
        "GossipConfig",
        "GossipRequest",
        "PeerView",
        "Send",
        "Validator",
    ]


_WRITE = st.tuples(
    st.sampled_from(["write", "delete", "forget", "sync"]), st.integers(0, 4), st.integers(0, 2)
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_WRITE, max_size=40))
def test_a_reader_that_syncs_now_and_then_ends_with_the_authors_keys(
    writes: list[tuple[str, int, int]],
) -> None:
    """Whatever it missed, forgotten deletions included, and whoever it syncs with last."""
    author = NodeState("author", 1)
    readers = [NodeState("author", 1) for _ in range(3)]
    for number, (kind, key, who) in enumerate(writes):
        if kind == "write":
            author = author.with_item(f"k{key}", msgpack.packb(number), number, 0.0)
        elif kind == "delete":
            author = author.with_item(f"k{key}", None, None, 0.0)
        elif kind == "forget":
            author = author.without_deleted([k for k, i in author.items.items() if not i.packed])
        else:  # from the author, or second hand
            source = author if key < 3 else readers[(who + 1) % 3]
            delta = unpack_delta(source.delta(readers[who].version))
            readers[who], _ = apply(readers[who], delta, 0.0, read)
    for reader in readers:
        final, _ = apply(reader, unpack_delta(author.delta(reader.version)), 0.0, read)
        assert final.values() == author.values()
        assert final.version == author.version


def test_a_delta_that_does_not_connect_changes_nothing() -> None:
    state = NodeState("n", 1, version=3)
    late = Delta(("n", 1, 0, 9, 0), 5, 0, (("k", 9, b"\x01"),))
    assert apply(state, late, 0.0, read) == (state, [])


def test_a_departed_node_keeps_no_keys_and_gives_none() -> None:
    state = NodeState("n", 1).with_item("k", b"\x01", 1, 0.0).with_liveness(0, LEFT)
    assert state.values() == {}
    assert unpack_delta(state.delta(0)).items == ()


def test_a_deleted_key_disappears_everywhere_and_its_tombstone_expires(
    mesh: Any, deliver: Any
) -> None:
    nodes = mesh("a", "b", config=GossipConfig(tombstone=2.0, pause_rounds=1000))
    nodes["a"].set("k", 1, 1.0)
    nodes["a"].set("other", 2, 1.0)
    deliver(nodes, "a", nodes["a"].tick(1.0), 1.0)
    assert nodes["b"].peer("a", 1.0).values == {"k": 1, "other": 2}
    nodes["a"].delete("k", 1.1)
    nodes["a"].delete("k", 1.1)
    nodes["a"].delete("never there", 1.1)
    deliver(nodes, "a", nodes["a"].tick(1.2), 1.2)
    assert nodes["b"].peer("a", 1.2).values == {"other": 2}
    assert nodes["a"].peer("a", 1.2).version == 3
    for now in (4.0, 4.1, 4.2):
        for name in "ab":
            deliver(nodes, name, nodes[name].tick(now), now)
    for gossip in nodes.values():
        (state,) = (s for s in gossip.states() if s.node == "a")
        assert set(state.items) == {"other"}
        assert state.floor == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("", 1),
        ("k" * 65, 1),
        ("k", object()),
        ("k", {1: 2}),
        ("k", b"x" * 1025),
        ("k", 2**64),
        ("k", [[[[1]]]]),
        ("k", list(range(300))),
        ("k", msgpack.ExtType(5, b"")),
        ("k", "\ud800"),
    ],
)
def test_a_value_that_peers_would_refuse_is_refused_where_it_is_written(
    make: Any, key: str, value: object
) -> None:
    node = make("a")
    with pytest.raises(ValueError, match=r".+"):
        node.set(key, value, 0.0)
    assert node.peer("a", 0.0).values == {}


def test_a_node_has_a_bounded_number_of_keys_and_bytes(make: Any) -> None:
    node = make("a")
    for i in range(64):
        node.set(f"k{i}", i, 0.0)
    with pytest.raises(ValueError, match="at most 64 keys"):
        node.set("one more", 1, 0.0)
    node.delete("k0", 0.0)
    node.set("one more", 1, 0.0)  # the tombstone makes room
    heavy = make("b")
    for i in range(7):
        heavy.set(f"k{i}", b"x" * 1000, 0.0)
    with pytest.raises(ValueError, match="at most 7680 bytes"):
        heavy.set("k7", b"x" * 1000, 0.0)
    assert len(heavy.peer("b", 0.0).values) == 7


def test_writing_the_same_value_again_is_no_news(make: Any) -> None:
    node = make("a")
    node.set("load", 0.5, 0.0)
    node.set("load", 0.5, 1.0)
    assert node.peer("a", 0.0).version == 1


@pytest.mark.parametrize("name", ["", "a.b", "a b", "x" * 65, "*", "ü", "a\n"])
def test_an_id_that_is_no_subject_token_is_refused(make: Any, name: str) -> None:
    with pytest.raises(ValueError, match="node id"):
        make(name)
    with pytest.raises(ValueError, match="node id"):
        make("a").add_peer(name)


def test_bad_incarnations_and_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="incarnation"):
        Gossip("a", -1, Random(1))
    with pytest.raises(ValueError, match="16 to 64 bytes"):
        Gossip("a", 1, Random(1), mesh_key=b"short")


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval": 0},
        {"fanout": 0},
        {"helpers": -1},
        {"timeout_min": 1.0, "timeout_max": 0.5},
        {"window_min": 90},
        {"window_max": 300},
        {"message_bytes": 512},
        {"message_bytes": 100_000},
        {"value_bytes": 8000},
        {"phi": 16},
        {"suspicion_max": 0.5},
        {"rebirth": -1.0},
        {"interval": math.nan},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong)).split("_")[0]):
        GossipConfig(**wrong)


def test_presets_differ_in_pace_only() -> None:
    assert LOCAL.interval < LAN.interval < WAN.interval
    for field in fields(GossipConfig):
        if field.name.endswith(("bytes", "nodes", "keys")):
            assert getattr(LOCAL, field.name) == getattr(WAN, field.name)


def test_phi_says_how_rare_a_wait_is() -> None:
    detector = PhiDetector(jitter=0.01)
    for elapsed in (0.09, 0.1, 0.11) * 10:
        detector.observe(elapsed)
    assert detector.phi(0.1) == pytest.approx(0.301, abs=0.001)  # one in two is later
    assert detector.phi(0.0) < detector.phi(0.12) < detector.phi(0.2)
    assert detector.phi(1e9) == pytest.approx(300)
    for level in (1.0, 3.0, 8.0):
        assert detector.phi(detector.wait(deviations(level))) == pytest.approx(level, rel=1e-3)


def test_phi_follows_the_network_and_ignores_nonsense() -> None:
    detector = PhiDetector(jitter=0.001)
    calm = detector.wait(5.0)
    for nonsense in (math.nan, math.inf, -1.0):
        detector.observe(nonsense)
    assert detector.wait(5.0) == calm
    for i in range(100):
        detector.observe(0.2 + 0.1 * (i % 2))
    assert detector.wait(5.0) == pytest.approx(0.25 + 5 * 0.05, rel=0.01)
    for _ in range(100):
        detector.observe(0.01)
    assert detector.wait(5.0) == pytest.approx(0.01 + 5 * 0.001, rel=0.01)
    with pytest.raises(ValueError, match="phi"):
        deviations(0.0)


def test_waits_are_within_their_bounds_and_grow_with_our_own_troubles(make: Any) -> None:
    node = make("a")
    node.add_peer("b")
    waits = [e.timeout for e in node.tick(0.0) if isinstance(e, GossipRequest)]
    assert waits == [pytest.approx(LAN.timeout_min)]
    health = LocalHealth(8)
    assert health.factor == 1
    for _ in range(20):
        health.worse()
    assert health.factor == 9
    for _ in range(20):
        health.better()
    assert health.factor == 1


def test_a_suspicion_lasts_longer_in_a_large_mesh_and_shorter_with_accusers() -> None:
    rounds = LAN.suspicion * LAN.interval
    assert suspicion_seconds(LAN, 2, 3) == pytest.approx(rounds)
    assert suspicion_seconds(LAN, 2, 0) == pytest.approx(3 * rounds)
    assert suspicion_seconds(LAN, 1000, 3) == pytest.approx(3 * rounds)
    steps = [suspicion_seconds(LAN, 100, count) for count in range(6)]
    assert steps == sorted(steps, reverse=True)
    assert steps[3] == steps[5]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("jbrfn"), st.integers(0, 30)), max_size=80),
    st.integers(0, 9),
)
def test_the_table_contacts_exactly_the_living_and_never_exceeds_its_size(
    steps: list[tuple[str, int]], seed: int
) -> None:
    table = Table(NodeState("me", 1), 12, 1e9, Random(seed))
    living: set[str] = set()
    for number, (kind, which) in enumerate(steps):
        name, now = f"n{which}", float(number)
        known = name in table.nodes
        if kind == "j" and not known:
            if table.learn(NodeState(name, 1), now) is None:
                living.add(name)
        elif kind == "b" and name in living:
            table.bury(NodeState(name, 1, status=2), now)
            living.discard(name)
        elif kind == "r" and known and name not in living:
            table.revive(NodeState(name, 2))
            living.add(name)
        elif kind == "f" and name in table.grave:
            table.forget(name)
        else:
            peers = table.next_peers(3)
            assert set(peers) <= living
            assert len(peers) >= min(len(living), 1)
        assert len(table.nodes) <= 12
        assert table.ids == sorted(table.nodes)
        assert table.alive == len(living) + 1
        assert set(table.nodes) == living | set(table.grave) | {"me"}


def test_each_peer_is_contacted_once_in_a_walk_through_all() -> None:
    table = Table(NodeState("me", 1), 100, 1e9, Random(1))
    for i in range(30):
        table.learn(NodeState(f"n{i}", 1), 0.0)
    walks = [[peer for _ in range(10) for peer in table.next_peers(3)] for _ in range(2)]
    assert sorted(walks[0]) == sorted(walks[1]) == sorted(f"n{i}" for i in range(30))
    assert walks[0] != walks[1]


def test_news_is_told_least_told_first_and_a_bounded_number_of_times() -> None:
    rumours = Rumours(retransmit=2)
    nodes = {name: NodeState(name, 1) for name in ("old", "new", "gone")}
    told = []
    rumours.heat("gone", 9)
    del nodes["gone"]
    rumours.heat("old", 9)
    for turn in range(6):
        frame = BoundedMessage("syn", NodeState("me", 1).entry, 1024, None)
        rumours.tell(frame, nodes, (), 0)
        body = msgpack.unpackb(frame.encode())
        told.append([entry[0] for entry in body.get("d", [])])
        if turn == 0:
            rumours.heat("new", 9)
    assert told == [["old"], ["new", "old"], ["new"], [], [], []]
    assert len(rumours) == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("dxfn"), st.integers(1, 64)), max_size=400),
    st.sampled_from([None, b"0123456789abcdef"]),
)
def test_a_frame_keeps_its_budget_and_can_be_read(
    parts: list[tuple[str, int]], key: bytes | None
) -> None:
    sender = b"\x96" + NodeState("me", 1).entry[1:] + b"\x05"
    frame = BoundedMessage("syn", sender, 1024, key)
    added = 0
    for section, size in parts:
        state = NodeState("n" * size, 1)
        packed = {
            "d": state.entry,
            "x": state.delta(0),
            "f": state.delta(0),
            "n": msgpack.packb((state.node, 1, 0)),
        }[section]
        added += frame.add(section, packed)
    payload = frame.encode()
    assert len(payload) <= 1024
    message = decode(payload, key, 65536)
    lists = (message.digest, message.deltas, message.fills, message.needs)
    assert sum(map(len, lists)) == added
    assert message.instance == 5


def test_plain_values_are_scalars_lists_and_maps_three_deep() -> None:
    assert plain({"a": [1, {"b": None}]})
    assert not plain({"a": [1, {"b": [1]}]})
    assert not plain({1: 2})
    assert not plain({1, 2})
