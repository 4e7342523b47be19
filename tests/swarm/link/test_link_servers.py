"""Which server a link goes to: of those given, of those learned, and of a cluster's the better."""

from __future__ import annotations

import logging
import os
import random
import signal
from collections import Counter

import pytest
from real_server import Links
from support.waiting import eventually

from nodes.up.embedded_cluster import EmbeddedCluster, free_ports
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import NotAdmitted
from swarm.link.servers import MOST_LEARNED, Greeting, ServerList, better_server, mixed

A, B, C = "nats://a:4222", "nats://b:4222", "nats://c:4222"


def greeting(server: str, *peers: str, cluster: str = "x", leaves: bool = False) -> Greeting:
    return Greeting(server, cluster, frozenset(f"{peer}:4222" for peer in peers), leaves)


def test_the_lost_server_is_tried_last_and_a_wanted_one_first() -> None:
    servers = ServerList([A, B, C], shuffle=lambda turn: None)
    assert servers.in_turn() == [A, B, C]
    servers.connected(A)
    assert servers.in_turn() == [B, C, A]
    assert servers.in_turn(first=C) == [C, B, A]


def test_processes_that_lose_a_server_together_spread_over_the_others() -> None:
    first: Counter[str] = Counter()
    for seed in range(600):
        servers = ServerList([A, B], random.Random(seed).shuffle)
        assert servers.in_turn() == [A, B], "at first by the order that somebody gave"
        servers.learn(frozenset({"c:4222", "d:4222"}))
        servers.connected(A)
        turn = servers.in_turn()
        assert (turn[0], turn[-1]) == (B, A), "given ones before learned ones, the lost one last"
        servers.connected(B)
        assert servers.in_turn()[0] == A
        alone = ServerList([A], random.Random(seed).shuffle)
        alone.learn(frozenset({"b:4222", "c:4222", "d:4222"}))
        alone.connected(A)
        first[alone.in_turn()[0]] += 1
    assert len(first) == 3
    assert min(first.values()) > 150


def test_learned_servers_follow_the_given_ones_with_their_scheme_and_credentials() -> None:
    servers = ServerList(["tls://me:secret@a:4222"])
    servers.learn(frozenset({"a:4222", "b:4222"}))
    servers.learn(frozenset({"b:4222"}))
    assert servers.all() == ["tls://me:secret@a:4222", "tls://me:secret@b:4222"]


def test_of_very_many_learned_servers_the_newest_are_kept() -> None:
    servers = ServerList([A])
    for number in range(3 * MOST_LEARNED):
        servers.learn(frozenset({"a:4222", f"10.0.{number}.1:4222"}))
    assert len(servers.all()) == 1 + MOST_LEARNED
    assert servers.all()[0] == A
    assert servers.all()[-1] == f"nats://10.0.{number}.1:4222"


def test_a_server_that_leaves_is_left_for_any_other_that_stays() -> None:
    home = greeting("a", "b", "c", leaves=True)
    assert better_server(home, {B: greeting("b", "b")}) == B
    assert better_server(home, {B: greeting("b", "b", leaves=True)}) is None
    assert better_server(home, {B: greeting("b", "b", cluster="y")}) is None
    assert better_server(home, {}) is None


def test_only_the_smaller_side_of_a_cut_network_is_left() -> None:
    alone, larger = greeting("a", "a"), greeting("b", "b", "c")
    assert better_server(alone, {B: larger, C: greeting("c", "b", "c")}) == B
    assert better_server(larger, {A: alone}) is None
    assert better_server(larger, {C: greeting("c", "b", "c")}) is None


def test_servers_of_two_clusters_are_told_apart() -> None:
    assert mixed({A: greeting("a"), B: greeting("b")}) == ""
    reason = mixed({A: greeting("a"), B: greeting("b", cluster="y")})
    assert "a:4222 is of 'x', b:4222 is of 'y'" in reason


def test_two_servers_alone_that_store_are_refused_unless_a_domain_is_named() -> None:
    alone, other = Greeting("a", stores=True), Greeting("b", stores=True)
    assert "a:4222 is alone, b:4222 is alone" in mixed({A: alone, B: other})
    assert "a:4222 is of 'x', b:4222 is alone" in mixed({A: greeting("a"), B: other})
    assert mixed({A: alone, B: other}, domain="hub") == ""
    assert mixed({A: alone, B: alone}) == "", "one server at two addresses"
    assert mixed({A: alone, B: Greeting("b")}) == "", "a leaf node that stores nothing"


@pytest.mark.integration
async def test_a_list_of_two_clusters_is_refused_with_one_line(links: Links) -> None:
    async with EmbeddedCluster(1, name="x") as x, EmbeddedCluster(1, name="y") as y:
        with pytest.raises(NotAdmitted, match=r"of one cluster: .* 'x', .* 'y'"):
            await links.connect(x.url, y.url)
        await links.close()


@pytest.mark.integration
async def test_a_list_of_two_servers_alone_is_refused_with_one_line(
    server: EmbeddedServer, links: Links
) -> None:
    other = await links.server()
    with pytest.raises(NotAdmitted, match=r"of one cluster: .* is alone, .* is alone;"):
        await links.connect(server.url, other.url)


@pytest.mark.integration
async def test_a_dead_server_of_a_list_is_named_once_and_the_others_are_used(
    server: EmbeddedServer, links: Links, caplog: pytest.LogCaptureFixture
) -> None:
    dead = f"nats://127.0.0.1:{free_ports(1)[0]}"
    with caplog.at_level(logging.WARNING, "swarm.link"):
        link = await links.connect(dead, server.url)
    assert link.connected
    assert [r.message for r in caplog.records] == [f"{dead} does not answer; the others do"]


@pytest.mark.integration
async def test_a_link_learns_the_servers_and_leaves_a_lame_duck_before_it_is_cut(
    links: Links,
) -> None:
    async with EmbeddedCluster(3) as cluster:
        first = cluster.servers[0]
        link = await links.connect(first.url)
        known = {server.port for server in cluster.servers}
        await eventually(lambda: len(link.servers.all()) == 3, "learning the servers")
        assert {int(url.rpartition(":")[2]) for url in link.servers.all()} == known
        downs: list[str] = []
        link.on_down.append(lambda: downs.append(link.last_error))
        os.kill(first.pid, signal.SIGUSR2)  # lame-duck mode; its clients stay for two seconds
        await eventually(lambda: link.connected and link.url.port != first.port)  # type: ignore[union-attr]
        assert downs == ["it leaves"]
        assert first.alive, "it still serves whoever did not leave"
        await first.kill()
        await links.close()
