"""A site beside a connection that has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.ended import end_idle, ended_client, node_of, none_turn, serve_digits
from support.waiting import GENEROUS

import swarm
from nodes.sites.settings import SiteOptions
from swarm.errors import LinkEnded
from swarm.sites.forwarder import Forwarder


async def test_who_waits_for_answers_is_told_at_once_that_there_can_be_none() -> None:
    async def results(client: swarm.Mesh) -> None:
        async for _ in client.results("robot-7", site="hub"):
            raise AssertionError("an answer from nowhere")

    with pytest.raises(LinkEnded, match="has ended: it was closed"):
        await asyncio.wait_for(results(await ended_client()), GENEROUS)


async def test_a_forwarder_does_not_turn(tmp_path: Path) -> None:
    loops = {
        "site": lambda client, _: Forwarder(client.link, client.subjects, "hub", client.ask).run()
    }
    await none_turn(loops, tmp_path)


async def test_a_gateway_that_forwards_does_not_turn(url: str) -> None:
    async with swarm.connect(url) as client:
        await serve_digits(client)
        others = [node_of(role, url) for role in ("shard-1", "fallback")]
        await end_idle([node_of("gateway", url, SiteOptions(site="hub")), *others])
