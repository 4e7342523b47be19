"""What a hostile or broken peer sends changes nothing for the others."""

from __future__ import annotations

import json
import os

import pytest
from fleet import DISCOVERY, SUBJECTS, Fleet, Member
from real_server import Links
from support.waiting import eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.fleet.advertised import candidates, load_entries, serves_entries, serving, valid

KEY = b"0123456789abcdef"
DIGITS = ("digits", "1", 1)


async def still_works(fleet: Fleet, members: list[Member], mark: str) -> None:
    members[0].gossip.set("role", mark)
    await eventually(
        lambda: all(m.value_of(members[0].gossip.node, "role") == mark for m in members),
        "that gossip goes on",
    )
    assert all(member.heard("died") == [] for member in members)
    assert all(member.link.callback_errors == 0 for member in members)
    assert not any(member.task.done() for member in members)


@pytest.mark.integration
async def test_gossip_as_large_as_the_server_lets_through_is_refused_unread(
    fleet: Fleet, links: Links, server: EmbeddedServer
) -> None:
    members = await fleet.start("a", "b")
    stranger = await links.connect(fleet.url)
    huge = os.urandom(stranger.max_payload)
    stranger.publish(SUBJECTS.gossip("b"), huge, "_INBOX.x.y")
    counters = members[1].gossip.gossip.counters
    await eventually(lambda: counters["too_large"] == 1, "the count")
    assert counters["malformed"] == 0  # it was not parsed
    await still_works(fleet, members, "after-flood")


@pytest.mark.integration
async def test_a_deep_or_broken_discovery_answer_is_counted(fleet: Fleet, links: Links) -> None:
    bodies = [
        b"",
        b"not json",
        b"null",
        b"[]",
        b"{}",
        b'{"metadata": null}',
        b'{"metadata": {"node": 7}}',
        b'{"metadata": {"node": "two words"}}',
        b'{"metadata": {"node": ["a"]}}',
        b"[" * 100_000,
        b"\xff\xfe",
        json.dumps({"metadata": {"node": "x" * 65}}).encode(),
    ]
    stranger = await links.connect(fleet.url)

    def answer(message: object) -> None:
        for body in bodies:
            stranger.publish(message.reply, body)  # type: ignore[attr-defined]

    stranger.subscribe(DISCOVERY, answer)
    await stranger.flush()
    members = await fleet.start("a", "b")
    await eventually(
        lambda: members[0].gossip.gossip.counters["malformed_discovery"] >= len(bodies),
        "the counts",
    )
    await still_works(fleet, members, "after-discovery")


@pytest.mark.integration
async def test_a_member_without_the_key_stays_outside(fleet: Fleet) -> None:
    inside = [await fleet.join(node, key=KEY) for node in ("a", "b")]
    await fleet.agree(inside, ("a", "b"))
    strangers = [
        await fleet.join("wrong", key=b"another key, but of good length"),
        await fleet.join("none"),
    ]
    await eventually(
        lambda: all(m.gossip.gossip.counters["forged"] > 0 for m in inside), "the refusals"
    )
    await still_works(fleet, inside, "inside")
    for member in inside:
        assert {peer.node for peer in member.gossip.alive()} == {"a", "b"}
    for stranger in strangers:
        assert {peer.node for peer in stranger.gossip.alive()} == {stranger.gossip.node}


@pytest.mark.integration
async def test_an_absurd_load_is_dropped_and_the_other_keys_apply(fleet: Fleet) -> None:
    [liar, a, b] = await fleet.start("liar", "a", "b")
    [load] = load_entries({DIGITS: [0] * 8})
    [serves] = serves_entries([DIGITS])
    liar.gossip.set(load, [[1, -1, 10**18, 0, 0, 0, 0, 0, 0]])
    liar.gossip.set(serves, "everything")
    liar.gossip.set("priority", -5)
    liar.gossip.set("memory", "much")
    liar.gossip.set("role", "shard-1")
    liar.gossip.set("unheard-of", [1, 2, 3])
    for member in (a, b):
        await eventually(
            lambda m=member: m.value_of("liar", "unheard-of") == (1, 2, 3), "the other keys"
        )
        values = member.gossip.view()["liar"].values
        assert values["role"] == "shard-1"
        assert not {load, serves, "priority", "memory"} & set(values)
    # Whoever heard it from the liar itself counted; the others never saw it.
    assert sum(m.gossip.gossip.counters["value_invalid"] for m in (a, b)) >= 4
    # And a true value under the same key is taken again.
    liar.gossip.set(load, [[1, 7, 0, 0, 0, 0, 0, 0, 0]])
    await eventually(
        lambda: a.value_of("liar", load) == ((1, 7, 0, 0, 0, 0, 0, 0, 0),), "the truth"
    )


@pytest.mark.integration
async def test_what_arrives_by_gossip_is_what_routing_reads(fleet: Fleet) -> None:
    """The whole way: said by one, carried, judged, and a candidate for another."""
    [a, b] = await fleet.start("a", "b")
    entries = serves_entries([("digits", "1", 2)])
    [load] = loads = load_entries({("digits", "1", 2): [3, 1, 5000, 4000, 9000, 0, 0, 0]})
    for key, value in (entries | loads | {"priority": 0, "host": "h1"}).items():
        assert a.gossip.set(key, value)
    await eventually(lambda: b.value_of("a", "host") is not None, "the spread")
    [peer] = serving(b.gossip.alive(), "digits", "1", 2)
    assert (peer.node, peer.priority, peer.host, peer.draining) == ("a", 0, "h1", False)
    assert serving(b.gossip.alive(), "digits", "1", 1) == []
    assert serving(b.gossip.alive(), "digits", "2", 2) == []
    [candidate] = candidates(b.gossip.view())
    assert (candidate.node, candidate.stage, candidate.load) == ("a", 2, 3)
    assert candidate.compute_ewma_s == pytest.approx(0.005)
    for key in entries:
        a.gossip.delete(key)
    await eventually(lambda: candidates(b.gossip.view()) == [], "the deletion")
    assert b.value_of("a", load) is not None  # of no use, and of no harm


@pytest.mark.integration
async def test_a_node_with_sixty_stages_is_known_whole_to_all_others(fleet: Fleet) -> None:
    """Two versions of them, under the longest names there are."""
    members = await fleet.start("a", "b", "c")
    stages = [("m" * 128, v * 128, stage) for v in "12" for stage in range(1, 61)]
    entries = serves_entries(stages) | load_entries({w: [w[2], 1, *[2_000] * 6] for w in stages})
    assert all([members[0].gossip.set(key, value) for key, value in entries.items()])  # noqa: C419
    await eventually(
        lambda: all(entries.keys() <= m.gossip.view()["a"].values.keys() for m in members),
        "the spread",
    )
    for member in members:
        found = candidates(member.gossip.view())
        assert {(m, v, c.stage) for c in found for m, [v] in c.versions.items()} == set(stages)
        assert all((c.node, c.load) == ("a", c.stage) for c in found)
        assert all(len(serving(member.gossip.alive(), *where)) == 1 for where in stages)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("draining", 1),
        ("host", "a/b"),
        ("device", ""),
        ("memory", True),
        ("memory", -1),
        ("memory", 1 << 60),
        ("priority", 10),
        ("priority", None),
        ("role", "two words"),
    ],
)
def test_values_that_no_node_writes_are_refused(key: str, value: object) -> None:
    assert not valid(key, value)


@pytest.mark.integration
async def test_a_value_that_is_too_large_is_not_told_and_ends_nothing(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted, and logged once."""
    [a, b] = await fleet.start("a", "b")
    assert a.gossip.set("notes", ["short"])
    for _ in range(5):
        assert not a.gossip.set("notes", ["long"] * 250)
    a.gossip.set("role", "large")
    await eventually(lambda: b.value_of("a", "role") == "large", "the other keys")
    assert b.value_of("a", "notes") == ("short",)
    assert a.gossip.gossip.counters["own_value_refused"] == 5
    assert len([r for r in caplog.records if "not gossiped: notes" in r.getMessage()]) == 1
    assert a.gossip.set("notes", ["short again"])
    await eventually(lambda: b.value_of("a", "notes") == ("short again",), "the next value")
    assert not a.gossip.set("notes", ["long"] * 250)
    assert len([r for r in caplog.records if "not gossiped: notes" in r.getMessage()]) == 2


@pytest.mark.integration
async def test_a_deleted_key_is_gone_everywhere_and_can_be_written_again(fleet: Fleet) -> None:
    members = await fleet.start("a", "b", "c")
    a = members[0].gossip
    a.delete("never-there")
    a.set("notes", 1)
    await eventually(lambda: all(m.value_of("a", "notes") == 1 for m in members))
    a.delete("notes")
    await eventually(lambda: all("notes" not in m.gossip.view()["a"].values for m in members))
    a.set("notes", 2)
    await eventually(lambda: all(m.value_of("a", "notes") == 2 for m in members))
