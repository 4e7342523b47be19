"""A server that cannot keep lanes is refused where it is met, by its own word, with the version
that can: alone, in a cluster with newer ones, and behind a leaf node. Those that can, do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from server_wheels import embedded
from support.commands import said
from support.waiting import GENEROUS

import swarm
from nodes.cli.doctor import Looked
from nodes.config import NodeConfig
from nodes.life.node import Node
from nodes.up.embedded_cluster import cluster_lines, elected, free_ports
from nodes.up.embedded_server import EmbeddedServer
from shards.split.split import SplitResult, split
from shards.zoo import digits_model
from swarm.errors import ApiError, ServerTooOld
from swarm.link import Link, LinkOptions, jetstream
from swarm.link.greetings import old_servers
from swarm.link.server_version import check_consumer, flaw_of, is_too_old, refused_priorities
from swarm.subjects import Subjects, api
from swarm.transport.lane.streams import LaneOptions, make_lanes, stream_config

OLDEST, LAST_OLD, FIRST, LAST_OF_FIRST, NEWEST = "2.10.25", "2.11.11", "2.12.0", "2.12.8", ""
integration = pytest.mark.integration


# --- what a server says ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "old"),
    [
        ("2.9.25", True),
        ("2.10.0", True),
        ("2.11.99", True),
        ("2.11.0-RC.1", True),
        ("1.99.0", True),
        ("v2.11.4", True),
        ("2.12.0", False),
        ("2.12.0-preview.2", False),
        ("2.12", False),
        ("2.15.1", False),
        ("3.0.0", False),
        ("10.0.0", False),
        ("", False),  # its lanes tell
        ("dev", False),
        ("2", False),
        ("2026.1.1", False),
        ("99999999.1", False),
    ],
)
def test_only_a_number_below_2_12_is_too_old(version: str, old: bool) -> None:
    assert is_too_old(version) is old


@pytest.mark.parametrize(
    ("version", "flawed"),
    [
        ("2.12.0", True),
        ("2.12.5", True),
        ("v2.12.5", True),
        ("2.12.6-RC.1", False),  # nothing is claimed of it
        ("2.12.6", False),
        ("2.12.10", False),
        ("2.14.0", False),
        ("2.15.1", False),
        ("3.0.0", False),
        ("2.12", False),
        ("dev", False),
        ("", False),
    ],
)
def test_a_server_with_a_known_flaw_of_rights_is_told_of(version: str, flawed: bool) -> None:
    told = flaw_of(version)
    assert ("CVE-2026-33249" in told and "2.12.6 or newer" in told) is flawed
    assert (f"WARNING: nats-server {version}" in Looked("s", version, flaw=told).told) is flawed


ASKED = {"priority_policy": "prioritized"}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "2.10 or older"),
        ({"priority_policy": "overflow"}, "2.10 or older"),
        ({"metadata": {"_nats.ver": "2.11.3"}}, "2.11.3"),
        ({"metadata": None}, "2.10 or older"),
    ],
)
def test_a_consumer_without_the_priorities_that_were_asked_for_is_refused(
    config: dict[str, Any], told: str
) -> None:
    info = {"config": config, "cluster": {"leader": "n7"}}
    with pytest.raises(ServerTooOld, match=f"n7 that keeps S is nats-server {told}.*2.12 or newer"):
        check_consumer(ASKED, "S", info)
    check_consumer({}, "S", info)
    check_consumer(ASKED, "S", {"config": config | ASKED})


def test_another_refusal_of_a_consumer_is_not_about_the_version() -> None:
    old = ApiError(400, 10025, 'invalid JSON: unknown priority policy: "prioritized"')
    assert isinstance(refused_priorities(old, "S"), ServerTooOld)
    assert refused_priorities(ApiError(400, 10025, "invalid JSON: EOF"), "S") is None
    assert refused_priorities(ApiError(400, 10100, "priority policy"), "S") is None


# --- one server -------------------------------------------------------------------------------


@pytest.fixture(params=[OLDEST, LAST_OLD])
def old(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """It has no part in any event loop."""
    server, loop = EmbeddedServer(), asyncio.new_event_loop()
    with embedded(request.param):
        loop.run_until_complete(server.start(GENEROUS))
    yield server
    loop.run_until_complete(server.stop())
    loop.close()


COMMANDS: Sequence[Sequence[str]] = (
    ("status", "--json"),
    ("model", "list"),
    ("up", "--model", "digits.onnx"),
)


@integration
def test_everything_that_connects_to_an_old_server_says_which_one_is_needed(
    old: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits.onnx").write_bytes(digits_model())
    for command in COMMANDS:
        done = said(*command, "--nats", old.url)
        told = "lanes need nats-server 2.12 or newer" in done.stdout + done.stderr
        assert (done.code, told) == (2, True), (command, done)
    looked = said("doctor", "--json", "--nats", old.url)
    (server,) = json.loads(looked.stdout)["servers"]
    assert looked.code == 1
    assert server["version"] in server["fault"]
    assert "2.12 or newer" in server["fault"]


@integration
async def test_a_node_and_a_client_of_an_old_server_end_with_the_version_that_they_need(
    old: EmbeddedServer,
) -> None:
    with pytest.raises(ServerTooOld, match=r"2\.12 or newer"):
        async with swarm.connect(old.url):
            pass
    node = Node(NodeConfig("gateway", nats=old.url, allow_unsigned=True))
    with pytest.raises(BaseExceptionGroup) as ended:
        await asyncio.wait_for(node.run(asyncio.Event()), GENEROUS)
    assert ended.group_contains(ServerTooOld, match=r"2\.12 or newer")


@asynccontextmanager
async def server_of(version: str, **options: Any) -> AsyncIterator[EmbeddedServer]:
    server = EmbeddedServer(**options)
    with embedded(version):
        await server.start(GENEROUS)
    try:
        yield server
    finally:
        await server.stop()


@cache
def digits() -> SplitResult:
    return split(digits_model(), name="digits", version="1", stages=2, profile=False)


@integration
@pytest.mark.parametrize("version", [FIRST, LAST_OF_FIRST, NEWEST])
async def test_beside_living_primaries_a_fallback_gets_nothing_of_any_server_that_is_taken(
    version: str,
) -> None:
    async with server_of(version) as server, swarm.connect(server.url, shm=False) as mesh:
        result = digits()
        await mesh.registry.push(result.manifest.to_json(), result.files)
        await mesh.registry.promote("digits", "1")
        stop = asyncio.Event()
        options = {"nats": server.url, "stored": True, "no_cache": True, "allow_unsigned": True}
        nodes = [
            Node(NodeConfig(role, "digits", **options))  # type: ignore[arg-type]
            for role in ("shard-1", "shard-2", "fallback")
        ]
        running = [asyncio.create_task(node.run(stop)) for node in nodes]
        ready = asyncio.gather(*(node.became_ready.wait() for node in nodes))
        await asyncio.wait_for(ready, GENEROUS)
        image = {"image": np.zeros((1, 1, 8, 8), np.float32)}
        computed = []
        for _ in range(60):
            answer = await mesh.infer("digits", image, budget=GENEROUS)
            computed += [hop.node for hop in answer.hops]
        assert len(computed) == 120
        assert computed.count(nodes[2].id) <= 6  # a primary that is late on a busy machine
        stop.set()
        await asyncio.wait_for(asyncio.gather(*running), GENEROUS)


# --- another server keeps the lanes -----------------------------------------------------------


@asynccontextmanager
async def linked(url: str, domain: str = "") -> AsyncIterator[Link]:
    link = Link(LinkOptions(servers=url, domain=domain))
    running = asyncio.create_task(link.run())
    try:
        await link.ready(GENEROUS)
        yield link
    finally:
        await link.close()
        await asyncio.gather(running, return_exceptions=True)


@integration
@pytest.mark.parametrize("version", [OLDEST, LAST_OLD])
async def test_an_old_server_of_a_cluster_is_found_by_what_it_says_of_a_lane(version: str) -> None:
    ports = free_ports(3)
    routes = [f"nats://127.0.0.1:{port}" for port in ports]
    servers = [
        EmbeddedServer(more=cluster_lines("c", port, routes) + f'server_tags: ["t{number}"]\n')
        for number, port in enumerate(ports)
    ]
    starts = []
    for server, its in zip(servers, (NEWEST, NEWEST, version), strict=True):
        with embedded(its):
            starts.append(asyncio.create_task(server.start(GENEROUS)))
            await asyncio.sleep(0)  # its process begins
    try:
        await asyncio.gather(*starts)
        new = servers[0].url
        await elected(LinkOptions(servers=new), GENEROUS)
        async with linked(new) as link:
            subjects, options = Subjects("default"), LaneOptions()
            config = stream_config(subjects, "m", "1", 1, options)
            placed = config | {"placement": {"tags": ["t2"]}}
            await jetstream.call(link, api("STREAM.CREATE", config["name"]), placed, GENEROUS)
            with pytest.raises(ServerTooOld, match=f"{config['name']} is nats-server"):
                await make_lanes(link, subjects, "m", "1", 1, options)
            (old,) = await old_servers(link)
            assert f"{servers[2].port} is nats-server {version}" in str(old)
        async with linked(f"{servers[2].url},{new}") as link:
            assert link.url is not None
            assert link.url.port == servers[0].port
    finally:
        for server in servers:
            await server.stop()


@integration
@pytest.mark.parametrize("version", [OLDEST, LAST_OLD])
async def test_behind_a_leaf_node_it_is_the_hub_that_counts(version: str) -> None:
    for hub_has, leaf_has in ((version, NEWEST), (NEWEST, version)):
        (port,) = free_ports(1)
        leaves = f'leafnodes {{ listen: "127.0.0.1:{port}" }}\n'
        hub = f"nats://127.0.0.1:{port}"
        remote = f'leafnodes {{ reconnect: "100ms", remotes: [{{ url: "{hub}" }}] }}\n'
        async with (
            server_of(hub_has, more=leaves, domain="hub"),
            server_of(leaf_has, more=remote, domain="site") as leaf,
            linked(leaf.url, domain="hub") as link,
        ):
            await elected(LinkOptions(servers=leaf.url, domain="hub"), GENEROUS)
            making = make_lanes(link, Subjects("default"), "m", "1", 1, LaneOptions())
            if hub_has == NEWEST:
                await making
            else:
                with pytest.raises(ServerTooOld, match=r"2\.12 or newer"):
                    await making
