"""Tokens that are waited for beside a connection that has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.ended import ended_client, none_turn
from support.waiting import GENEROUS

import swarm
from swarm.errors import LinkEnded


async def tokens(client: swarm.Mesh, _: Path) -> None:
    async for _token in client.generate("llm", [1, 2, 3], budget=60.0):
        raise AssertionError("a token from nowhere")


async def test_who_waits_for_tokens_is_told_at_once_that_there_can_be_none() -> None:
    with pytest.raises(LinkEnded, match="has ended: it was closed"):
        await asyncio.wait_for(tokens(await ended_client(), Path()), GENEROUS)


async def test_the_loop_of_tokens_does_not_turn(tmp_path: Path) -> None:
    await none_turn({"tokens": tokens}, tmp_path)
