"""Clients that use the library tell the mesh what became of their requests, whatever they asked."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.waiting import eventually

import swarm
from nodes.up.embedded_server import EmbeddedServer
from swarm.link import Link, LinkMessage

pytestmark = pytest.mark.integration

Heard = list[dict[str, Any]]


@pytest.fixture
async def heard() -> AsyncIterator[tuple[str, Heard]]:
    """A server, and the reports that come there."""
    told: Heard = []
    async with EmbeddedServer() as server, swarm.connect(server.url, shm=False) as mesh:
        link: Link = mesh.link

        def take(message: LinkMessage) -> None:
            told.append(json.loads(bytes(message.data))["requests"])

        link.subscribe(mesh.subjects.observed_all, take)
        await link.flush()
        yield server.url, told


async def fails(work: Any) -> str:
    try:
        await work
    except swarm.SwarmError as error:
        return str(error.status)
    return "OK"


@pytest.mark.parametrize("others", [{}, {"cascade": "large"}, {"ensemble": "other"}])
async def test_tokens_that_nobody_gives_are_told_once_of_the_model_that_was_asked(
    heard: tuple[str, Heard], others: dict[str, Any]
) -> None:
    url, told = heard
    async with swarm.connect(url, shm=False) as client:
        ends = [await fails(client.generate("llm", [1, 2], budget=0.3, **others).whole())]
        ends.append(await fails(client.chat("llm", [{"role": "user"}], budget=0.3).whole()))

    def in_all() -> Counter[str]:
        """A client tells each five seconds, and when it ends."""
        assert all(report.keys() == {"llm"} for report in told)
        return sum((Counter(report["llm"]) for report in told), Counter())

    await eventually(lambda: in_all().total() >= len(ends), "the client tells when it ends")
    assert in_all() == Counter(ends)
    assert "OK" not in ends


async def test_a_loop_over_tokens_that_is_left_is_no_failure(heard: tuple[str, Heard]) -> None:
    url, told = heard
    async with swarm.connect(url, shm=False) as client:
        tokens = aiter(client.generate("llm", [1, 2], budget=0.3))
        await tokens.aclose()
    async with swarm.connect(url, shm=False) as client:
        await fails(client.generate("llm", [1], budget=0.2).whole())
    await eventually(lambda: len(told) == 1, "the second client tells")
