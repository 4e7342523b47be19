"""A defect of learning is told, and learning is tried again."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from nodes.learning.options import LearnConfig
from nodes.life.config import NodeConfig
from nodes.life.learning import Learning
from swarm.subjects import Subjects


class BrokenRegistry:
    async def info(self, model: str, version: str) -> None:
        raise KeyError("a defect")


async def test_an_error_that_nobody_foresaw_is_told_and_stands_in_the_status() -> None:
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    mesh: Any = SimpleNamespace(link=None, subjects=Subjects("default"), registry=BrokenRegistry())
    anything: Any = None
    learning = Learning(
        mesh,
        NodeConfig("learner", "digits"),
        LearnConfig(),
        "learner-1",
        anything,
        anything,
        SimpleNamespace(serving={"1": None}),  # type: ignore[arg-type]
        lambda kind, detail: told.put_nowait({"kind": kind} | detail),
    )
    running = asyncio.create_task(learning.run())
    try:
        event = await asyncio.wait_for(told.get(), 5.0)
    finally:
        running.cancel()
        await asyncio.wait({running}, timeout=5.0)
    assert (event["kind"], event["what"]) == ("learning", "failed")
    assert "KeyError('a defect')" in event["detail"]
    assert learning.status()["learning"]["problem"] == event["detail"]
