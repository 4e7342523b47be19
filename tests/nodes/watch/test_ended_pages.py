"""What people watch beside a connection that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path

from support.ended import Loop, none_turn

import swarm
from nodes.watch.dashboard.page_state import PageState
from nodes.watch.dashboard.source import MeshSource


def dashboard(client: swarm.Mesh, _: Path) -> Awaitable[None]:
    events = asyncio.Event(), asyncio.Event()
    source = MeshSource(client.link.options, PageState("default"), *events)

    async def run() -> None:
        await source.link.close()
        await source.run()

    return run()


LOOPS: dict[str, Loop] = {"dashboard": dashboard}


async def test_no_loop_of_a_page_turns(tmp_path: Path) -> None:
    await none_turn(LOOPS, tmp_path)
