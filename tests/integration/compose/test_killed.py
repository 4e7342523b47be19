"""Processes of compositions are killed while requests fan out: none is lost, none is answered
wrongly, by handed-over messages and by lanes."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import numpy as np
import pytest
import pytest_asyncio
from composed import IMAGE, second, steady
from support.compositions import built
from support.meshes import add_model, all_ready, close, digits, mesh_of, split_digits
from support.waiting import eventually

from nodes.up.mesh import LocalMesh, push
from swarm import Status

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]
ROWS = 40  # of a request: two requests to the model that is asked for each row
FAN = (
    IMAGE
    + """
[[part]]
name = "each"
map = "second@1"
inputs = { image = "image" }
most = 64

[[part]]
name = "whole"
model = "digits@1"
inputs = { image = "image" }

[[part]]
name = "both"
mean = ["each.logits", "whole.logits"]

[outputs]
logits = "both.mean"
"""
)


@pytest_asyncio.fixture(
    params=[True, False], ids=["handed over", "lanes"], scope="module", loop_scope="module"
)
async def local(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LocalMesh]:
    two = ("shard-1", "shard-1")
    async with mesh_of(split_digits(stages=1), *two, shm=request.param) as made:
        await add_model(made, second(), *two)
        manifest, files = await built(made, tmp_path_factory.mktemp("fan"), FAN, "fan")
        await push(made, manifest.to_json(), files)
        for _ in range(2):
            made.start("shard-1", "fan")
        await made.ready(60.0)
        yield made


class Asked:
    """Requests at a pace; each has to be answered, and rightly."""

    def __init__(self, local: LocalMesh) -> None:
        self._local = local
        self.right = 0
        self.wrong: list[str] = []

    def steady(self) -> AbstractAsyncContextManager[None]:
        return steady(self._one, 0.05)

    async def _one(self, number: int) -> None:
        images, logits = digits()
        rows = (np.arange(ROWS) + number) % len(images)
        result = await self._local.mesh.ask("fan", {"image": images[rows]}, 60.0)
        if result.status is not Status.OK:
            self.wrong.append(f"{result.status}: {result.message}")
        elif not close(result.outputs["logits"], logits[rows]):
            self.wrong.append("other logits")
        else:
            self.right += 1

    async def more(self, count: int) -> None:
        before = self.right
        await eventually(lambda: self.right >= before + count, f"{count} answers", 60.0)


@pytest.mark.parametrize("models", [["fan"], ["second"], ["fan", "second"], ["digits", "digits"]])
async def test_killed_nodes_lose_no_request(local: LocalMesh, models: list[str]) -> None:
    await all_ready(local)
    nodes = list(local.supervisor.nodes)
    asked = Asked(local)
    async with asked.steady():
        await asked.more(10)
        for model in models:
            victim = next(node for node in nodes if model in node.arguments)
            nodes.remove(victim)
            victim.signal(signal.SIGKILL)
        await asked.more(40)
        await all_ready(local)
        await asked.more(10)
    assert asked.wrong == []


async def test_a_killed_server_that_returns_loses_no_request(local: LocalMesh) -> None:
    await all_ready(local)
    asked = Asked(local)
    async with asked.steady():
        await asked.more(10)
        assert local.server is not None
        assert local.server.pid is not None
        os.kill(local.server.pid, signal.SIGKILL)
        await asked.more(40)
    assert asked.wrong == []
