"""How many servers keep what a mesh stores, and calls that a cluster cannot answer just now."""

from __future__ import annotations

import json
from typing import Any

import pytest
from real_server import Links

from nodes.up.embedded_cluster import EmbeddedCluster, elected
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import ApiError, InvalidArgument, NoLeader, NoResponders, Unavailable
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


@pytest.mark.integration
async def test_a_store_that_a_server_does_not_know_yet_is_read_and_written_a_little_later(
    links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EmbeddedCluster(3) as cluster:
        urls = cluster.url.split(",")
        await elected(LinkOptions(servers=urls))
        link = await links.connect(*urls)
        await jetstream.ensure_bucket(link, "new", "news")
        request, unknown = link.request, [0]

        async def of_a_server_behind(subject: str, *given: Any, **more: Any) -> Any:
            if "$KV.new." in subject:
                unknown[0] -= 1
                if unknown[0] >= 0:
                    raise NoResponders(subject)
            return await request(subject, *given, **more)

        monkeypatch.setattr(link, "request", of_a_server_behind)
        for _ in range(3):
            unknown[0] = 5
            assert await jetstream.kv_get(link, "new", "key") in (None, b"1")
            unknown[0] = 5
            await jetstream.kv_put(link, "new", "key", b"1")
        unknown[0] = 10_000
        with pytest.raises(Unavailable):
            await jetstream.kv_get(link, "new", "key")
        with pytest.raises(Unavailable):
            await jetstream.kv_put(link, "new", "key", b"1")
        await links.close()
