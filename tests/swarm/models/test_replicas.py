"""How many servers keep what a mesh stores, and calls that a cluster cannot answer just now."""

from __future__ import annotations

import json

import pytest
from real_server import Links

from nodes.up.embedded_cluster import EmbeddedCluster, elected
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import ApiError, InvalidArgument, NoLeader
from swarm.link import Link, LinkOptions, jetstream
from swarm.models.registry import Registry
from swarm.models.replicas import raise_all_replicas
from swarm.subjects import Subjects, api

SUBJECTS = Subjects("m")
KEYS = f"KV_{SUBJECTS.config_bucket}"


async def copies(link: Link, stream: str) -> int:
    info = await jetstream.call(link, api("STREAM.INFO", stream))
    return int(info["config"]["num_replicas"])


@pytest.mark.parametrize("number", [10008, 10118, 10119])
def test_a_cluster_without_a_leader_is_told_apart_from_a_refusal(number: int) -> None:
    error = {"error": {"code": 500, "err_code": number, "description": "no leader"}}
    with pytest.raises(NoLeader):
        jetstream.parse(json.dumps(error).encode())
    error["error"]["err_code"] = jetstream.STREAM_NOT_FOUND
    with pytest.raises(ApiError):
        jetstream.parse(json.dumps(error).encode())


@pytest.mark.integration
async def test_keys_of_one_server_get_three_copies_where_there_are_three_servers(
    links: Links,
) -> None:
    async with EmbeddedCluster(3) as cluster:
        urls = cluster.url.split(",")
        await elected(LinkOptions(servers=urls))
        single = await links.connect(*urls, replicas=1)
        await Registry(single, SUBJECTS).prepare()
        assert await copies(single, KEYS) == 1
        link = await links.connect(*urls)
        assert await raise_all_replicas(link, SUBJECTS) == [KEYS]
        assert await copies(link, KEYS) == 3
        assert await raise_all_replicas(link, SUBJECTS) == []
        assert await raise_all_replicas(single, SUBJECTS) == [], "copies are never taken away"
        await links.close()


@pytest.mark.integration
async def test_a_server_alone_keeps_one_copy_and_refuses_three_with_the_remedy(
    server: EmbeddedServer, links: Links
) -> None:
    link = await links.connect(server.url, replicas=3)
    with pytest.raises(InvalidArgument, match=r"too few servers .* with `auto`"):
        await Registry(link, SUBJECTS).prepare()
    link = await links.connect(server.url)
    await Registry(link, SUBJECTS).prepare()
    assert await copies(link, KEYS) == 1
