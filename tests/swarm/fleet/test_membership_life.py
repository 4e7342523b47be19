"""Members join, speak, leave, crash and hang, on a real server."""

from __future__ import annotations

import asyncio
import time

import pytest
from fleet import Fleet
from real_server import Links
from support.waiting import eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.subjects import Subjects

pytestmark = pytest.mark.integration


async def test_members_find_each_other_without_a_seed_list(fleet: Fleet) -> None:
    members = await fleet.start("a", "b", "c", "d")
    for member in members:
        others = {"a", "b", "c", "d"} - {member.gossip.node}
        assert others <= set(member.heard("joined"))
        assert {peer.node for peer in member.gossip.alive()} == {"a", "b", "c", "d"}


async def test_a_latecomer_whom_nobody_can_discover_finds_the_others(fleet: Fleet) -> None:
    """It asks; that suffices."""
    members = await fleet.start("a", "b")
    late = await fleet.join("late", discoverable=False)
    await fleet.agree([*members, late], ("a", "b", "late"))


async def test_two_meshes_on_one_server_do_not_meet(fleet: Fleet) -> None:
    here = await fleet.start("a", "b")
    elsewhere = [await fleet.join(node, subjects=Subjects("elsewhere")) for node in ("x", "y")]
    await fleet.agree(elsewhere, ("x", "y"))
    here.append(await fleet.join("c"))
    await fleet.agree(here, ("a", "b", "c"))  # they have all looked around since
    assert all(set(member.gossip.view()) == {"x", "y"} for member in elsewhere)
    assert all(set(member.gossip.view()) == {"a", "b", "c"} for member in here)


async def test_what_a_member_says_reaches_all_as_it_was_said(fleet: Fleet) -> None:
    members = await fleet.start("a", "b", "c", "d", "e")
    a = members[0].gossip
    a.set("role", "shard-1")
    a.set("words", [["digits", "1", 1], ["digits", "2", 1]])
    a.set("numbers", {"digits/1": [1, 2, 3, 4, 5, 6, 7, 8]})
    a.set("draining", True)
    await eventually(
        lambda: all(m.value_of("a", "draining") is True for m in members), "the spread"
    )
    seen = [dict(member.gossip.view()["a"].values) for member in members]
    assert all(values == seen[0] for values in seen)
    assert seen[0]["words"] == (("digits", "1", 1), ("digits", "2", 1))
    assert seen[0]["numbers"] == {"digits/1": (1, 2, 3, 4, 5, 6, 7, 8)}


async def test_a_crash_is_known_to_all_and_nobody_was_suspected_first(fleet: Fleet) -> None:
    """No timeout is waited for. (How many rounds it takes: test_gossip_targets.)"""
    members = await fleet.start("a", "b", "c", "d", "e")
    dead = members.pop(2)
    await fleet.links.crash(dead.link)
    await eventually(lambda: all("c" in m.heard("died") for m in members), "the news of the death")
    assert all(member.state_of("c") == "dead" for member in members)
    assert all("c" not in member.heard("suspected") for member in members)
    alive = {"a", "b", "d", "e"}
    assert all({p.node for p in m.gossip.alive()} == alive for m in members)


async def test_a_node_whose_process_has_ended_is_dead_at_once(fleet: Fleet, links: Links) -> None:
    """It is asked now; gossip's rounds do not find it here, since there are none any more."""
    a, b = await fleet.start("a", "b")
    b.gossip.set("inbox", "_INBOX.b")
    await eventually(lambda: a.value_of("b", "inbox") == "_INBOX.b", "the spread")
    a.task.cancel()
    await asyncio.gather(a.task, return_exceptions=True)
    a.gossip.gone("_INBOX.nobody")
    await links.crash(b.link)
    a.gossip.gone("_INBOX.b")
    await eventually(lambda: a.heard("died") == ["b"], "the news of the death")


async def test_a_member_that_hangs_is_suspected_first_and_dead_then(fleet: Fleet) -> None:
    members = await fleet.start("a", "b", "c", "d")
    await fleet.hang(members[1])
    others = [member for member in members if member.gossip.node != "b"]
    await eventually(lambda: all("b" in m.heard("died") for m in others), "that the hang is found")
    assert any("b" in member.heard("suspected") for member in others)
    assert all(member.state_of("b") == "dead" for member in others)
    for member in others:
        assert {"a", "c", "d"} == {peer.node for peer in member.gossip.alive()}


async def test_a_departure_is_announced_and_is_no_death(fleet: Fleet) -> None:
    members = await fleet.start("a", "b", "c", "d")
    leaver = members.pop(0)
    leaver.gossip.leave()
    await leaver.link.flush()
    # A node goes on answering while it drains.
    await eventually(lambda: all("a" in m.heard("left") for m in members), "the farewell")
    assert all(member.heard("died") == [] for member in members)
    assert all(member.state_of("a") == "left" for member in members)


async def test_a_member_that_comes_back_under_its_id_is_alive_again(fleet: Fleet) -> None:
    members = await fleet.start("a", "b", "c")
    gone = members.pop()
    await fleet.links.crash(gone.link)
    gone.task.cancel()
    await eventually(lambda: all(m.state_of("c") == "dead" for m in members), "the death")
    again = await fleet.join("c")
    again.gossip.set("role", "second-life")
    await eventually(
        lambda: all(m.value_of("c", "role") == "second-life" for m in members), "the return"
    )
    assert all(member.state_of("c") == "alive" for member in members)


async def test_a_restart_of_the_server_kills_nobody(
    fleet: Fleet, own_server: EmbeddedServer
) -> None:
    members = await fleet.start("a", "b", "c", "d", "e")
    for member in members:
        member.events.clear()
    reconnects = [member.link.reconnects for member in members]
    await own_server.kill()
    await eventually(lambda: not any(m.link.connected for m in members), "the loss")
    await own_server.start()
    await eventually(
        lambda: all(
            m.link.connected and m.link.reconnects > before
            for m, before in zip(members, reconnects, strict=True)
        ),
        "the reconnection",
    )
    members[0].gossip.set("role", "after")
    await eventually(lambda: all(m.value_of("a", "role") == "after" for m in members), "the spread")
    # A suspicion may come up while some are back and others are not; it is refuted.
    await eventually(lambda: all(len(m.gossip.alive()) == 5 for m in members), "that all are alive")
    assert [event for m in members for event in m.events if event.kind == "died"] == []


async def test_an_id_used_twice_is_reported_as_an_event(fleet: Fleet) -> None:
    [witness, _] = await fleet.start("witness", "twin")
    other = await fleet.join("twin")

    def reported() -> bool:
        return any("twin" in m.heard("duplicate") for m in fleet.members)

    await eventually(reported, "the report")
    await eventually(
        lambda: (
            witness.gossip.gossip.counters["duplicate_node"] > 0
            or other.gossip.gossip.counters["duplicate_self"] > 0
        ),
        "the count",
    )


async def test_wall_clocks_play_no_part(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """One lives in 1970, one in 2106; all agree, and a death is seen as fast as ever."""
    real = time.time_ns
    members = []
    for node, clock in (("past", 0), ("future", 1 << 62), ("today", real())):
        monkeypatch.setattr(time, "time_ns", lambda clock=clock: clock)
        members.append(await fleet.join(node))
    monkeypatch.setattr(time, "time_ns", real)
    await fleet.agree(members, ("past", "future", "today"))
    members[0].gossip.set("role", "old")
    await eventually(
        lambda: all(m.value_of("past", "role") == "old" for m in members), "the spread"
    )
    await fleet.links.crash(members[1].link)
    survivors = [members[0], members[2]]
    await eventually(lambda: all("future" in m.heard("died") for m in survivors), "the death")
