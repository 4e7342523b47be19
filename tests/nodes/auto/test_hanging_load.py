"""A node whose loading never ends lives, and claims its slot: another one takes it, and serves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.meshes import close, digits, split_digits
from support.waiting import GENEROUS

import swarm
from nodes.config import NodeConfig
from nodes.life.node import Node
from nodes.versions.loaded import Loaded
from nodes.versions.loader import Loader
from swarm.auto import hanging
from swarm.link import LinkMessage

pytestmark = [pytest.mark.integration, pytest.mark.benchmark]


class Said:
    """The last statuses of nodes."""

    def __init__(self, mesh: swarm.Mesh) -> None:
        self.of: dict[str, dict[str, Any]] = {}
        self._news = asyncio.Event()
        mesh.link.subscribe(mesh.subjects.status_all, self._status)

    def _status(self, message: LinkMessage) -> None:
        doc = json.loads(bytes(message.data))
        self.of[doc["node"]] = doc
        self._news.set()

    async def until(self, promise: Callable[[], bool]) -> None:
        async with asyncio.timeout(GENEROUS):
            while not promise():
                self._news.clear()
                await self._news.wait()

    def stages(self, node: Node) -> list[int]:
        return [row["stage"] for row in self.of.get(node.id, {}).get("stages", [])]

    def slot(self, node: Node) -> list[int] | None:
        plans = self.of.get(node.id, {}).get("plans", [])
        return plans[0].get("slot") if plans else None


@asynccontextmanager
async def auto(url: str) -> AsyncIterator[Node]:
    config = NodeConfig("auto", "digits", nats=url, shm=False, no_cache=True, allow_unsigned=True)
    node = Node(config)
    stop = asyncio.Event()
    life = asyncio.create_task(node.run(stop))
    try:
        yield node
        assert not life.done()
    finally:
        stop.set()
        await asyncio.wait_for(life, GENEROUS)


async def test_another_node_takes_the_slot_of_one_that_hangs_while_it_loads(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hanging, "PATIENCE", 1.0)
    monkeypatch.setattr(hanging, "LOADED_A_SECOND", 1e9)
    hangs, released, load = list[Loader](), asyncio.Event(), Loader.add

    async def add(self: Loader, loaded: Loaded, stages: Sequence[int]) -> None:
        if not hangs or self in hangs:
            hangs.append(self)
            await released.wait()
        await load(self, loaded, stages)

    monkeypatch.setattr(Loader, "add", add)
    model = split_digits(stages=2)
    images, expected = digits()
    async with swarm.connect(url, shm=False) as mesh:
        said = Said(mesh)
        await mesh.registry.push(model.manifest.to_json(), model.files)

        async def is_answered() -> bool:
            result = await mesh.infer("digits", {"image": images[:1]}, GENEROUS)
            return close(result.outputs["logits"], expected[:1])

        async with auto(url) as first:
            await said.until(lambda: said.slot(first) == [1, 2] and bool(hangs))
            async with auto(url) as other:
                await said.until(lambda: said.stages(other) == [1, 2])
                assert said.stages(first) == []
                assert await is_answered()
                released.set()  # late, and of two nodes for one place one goes
                await said.until(
                    lambda: sorted((said.stages(first), said.stages(other))) == [[], [1, 2]]
                )
                assert await is_answered()
