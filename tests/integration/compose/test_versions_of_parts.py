"""A composition keeps to the versions that it was built with, whatever becomes of its models."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from composed import second, steady, summed
from support.compositions import built
from support.meshes import add_model, digits, mesh_of, split_digits
from support.waiting import GENEROUS, eventually

from nodes.up.mesh import LocalMesh, push
from nodes.versions.versions import LINGERS
from shards.split.split import SplitResult
from swarm import Result, Status
from swarm.errors import SwarmError

pytestmark = [pytest.mark.integration, pytest.mark.processes]


async def stored(local: LocalMesh, result: SplitResult) -> None:
    """In the mesh, beside the version that serves."""
    await local.mesh.registry.push(result.manifest.to_json(), result.files)


@dataclass
class Traffic:
    """Requests for a composition, of which each answer is that of one of its versions."""

    local: LocalMesh
    model: str
    answers: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def steady(self, pause: float = 0.03) -> AbstractAsyncContextManager[None]:
        return steady(self._one, pause)

    async def _one(self, number: int) -> None:
        images, logits = digits()
        at = number % len(images)
        result: Result = await self.local.mesh.ask(self.model, {"image": images[at][None]}, 10.0)
        if result.status is not Status.OK:
            self.failed.append(f"{result.status}: {result.message}")
            return
        factor = (1 + float(result.version)) / 2
        right = np.allclose(result.outputs["logits"], logits[at] * factor, rtol=1e-4, atol=1e-3)
        self.answers[result.version if right else "wrong"] += 1

    async def more(self, version: str, count: int = 20) -> None:
        before = self.answers[version]
        what = f"{count} answers of version {version}"
        await eventually(lambda: self.answers[version] >= before + count, what)


def says(local: LocalMesh, model: str, text: str) -> Callable[[], bool]:
    """Whether all nodes of a model are ready, and say this."""

    def do() -> bool:
        nodes = [node for node in local.supervisor.nodes if model in node.arguments]
        told = [local.status_of(node) or {} for node in nodes]
        return all((s.get("state"), s.get("detail")) == ("ready", text) for s in told)

    return do


async def test_parts_and_compositions_are_promoted_and_rolled_back_and_no_request_is_lost(
    tmp_path: Path,
) -> None:
    async with mesh_of(split_digits(stages=1), "shard-1") as local:
        await add_model(local, second(), "shard-1")
        for version in "12":
            if version == "2":
                await stored(local, second("2"))
            manifest, files = await built(local, tmp_path, summed(version), "sum", version)
            await local.mesh.registry.push(manifest.to_json(), files)
        for _ in range(2):
            local.start("shard-1", "sum")
        await local.ready(60.0)
        registry, traffic = local.mesh.registry, Traffic(local, "sum")
        async with traffic.steady():
            await traffic.more("1")
            await registry.promote("second", "2")
            await asyncio.sleep(LINGERS + 2.0)  # a version that nobody needs ends by then
            await traffic.more("1")
            await registry.promote("sum", "2")
            await traffic.more("2")
            await asyncio.sleep(LINGERS + 2.0)
            await traffic.more("2")
            await registry.rollback("sum")
            await traffic.more("1")
        assert traffic.failed == []
        assert set(traffic.answers) == {"1", "2"}


async def test_a_composition_says_which_part_nobody_serves_and_answers_once_it_is_served(
    tmp_path: Path,
) -> None:
    images, logits = digits()
    async with mesh_of(split_digits(stages=1), "shard-1") as local:
        await push(local, second().manifest.to_json(), second().files)
        manifest, files = await built(local, tmp_path, summed("1"), "sum")
        await push(local, manifest.to_json(), files)
        local.start("shard-1", "sum")
        await local.ready(60.0)
        waits = "serving; composition sum@1 waits for second@1: no node serves it"
        await eventually(says(local, "sum", waits), "the node says what it waits for")
        with pytest.raises(SwarmError, match="part 'small', second@1: no node serves it"):
            await local.mesh.infer("sum", {"image": images[:1]}, 1.0)
        asked = [
            asyncio.create_task(local.mesh.ask("sum", {"image": images[:1]}, GENEROUS))
            for _ in range(100)
        ]
        await asyncio.sleep(1.0)  # they wait
        local.start("shard-1", "second")
        results = await asyncio.gather(*asked)
        others = [str(r.message) for r in results if r.status is not Status.OK]
        assert not others, (len(others), others[0])
        await eventually(says(local, "sum", "serving"), "nothing is waited for")
        answer = await local.mesh.infer("sum", {"image": images[:1]}, 30.0)
        assert np.allclose(answer.outputs["logits"], logits[:1], rtol=1e-4, atol=1e-3)
