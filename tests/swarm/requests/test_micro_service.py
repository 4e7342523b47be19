"""Service discovery over the data link, as other NATS clients see it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from real_server import Links

from nodes.up.embedded_server import EmbeddedServer
from swarm.link import Link, LinkMessage
from swarm.requests.micro_service import Endpoint, MicroService

pytestmark = pytest.mark.integration


class Echo:
    """A service that answers with the request."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.service = MicroService(
            link, "echo", "0.1.0", "repeats", {"node": "n"}, self.handle, [Endpoint("say.it")]
        )

    def handle(self, endpoint: Endpoint, message: LinkMessage) -> None:
        endpoint.done(0.5, "empty" if not message.data else "")
        self.link.publish(message.reply, bytes(message.data))


async def ask(client: Client, subject: str, data: bytes = b"") -> Any:
    return json.loads((await client.request(subject, data, timeout=5)).data)


async def test_other_clients_find_a_service_and_its_figures(
    server: EmbeddedServer, links: Links
) -> None:
    echo = Echo(await links.connect(server.url))
    echo.service.start()
    await echo.link.flush()
    client = await nats.connect(server.url)
    try:
        for subject in ("$SRV.PING", "$SRV.PING.echo", f"$SRV.PING.echo.{echo.service.id}"):
            found = await ask(client, subject)
            assert found["type"] == "io.nats.micro.v1.ping_response"
            assert (found["name"], found["metadata"]) == ("echo", {"node": "n"})
        info = await ask(client, "$SRV.INFO.echo")
        assert [e["subject"] for e in info["endpoints"]] == ["say.it"]
        assert (await client.request("say.it", b"hello", timeout=5)).data == b"hello"
        await client.request("say.it", b"", timeout=5)
        (stats,) = (await ask(client, "$SRV.STATS.echo"))["endpoints"]
        assert (stats["num_requests"], stats["num_errors"], stats["last_error"]) == (2, 1, "empty")
        assert stats["processing_time"] == 2 * stats["average_processing_time"] == 1_000_000_000
        await echo.service.stop(1.0)
        for subject in ("say.it", "$SRV.PING.echo"):
            with pytest.raises(nats.errors.NoRespondersError):
                await client.request(subject, b"x", timeout=5)
    finally:
        await client.close()


async def test_a_service_is_there_again_after_the_server_has_restarted(
    own_server: EmbeddedServer, links: Links
) -> None:
    echo = Echo(await links.connect(own_server.url))
    echo.service.start()
    await echo.link.flush()
    await own_server.kill()
    await own_server.start()
    async with asyncio.timeout(10):
        await echo.link.ready()
        await echo.link.flush()
        client = await nats.connect(own_server.url)
        try:
            assert (await client.request("say.it", b"again", timeout=5)).data == b"again"
        finally:
            await client.close()
