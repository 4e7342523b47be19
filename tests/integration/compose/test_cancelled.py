"""A request whose client has gone is ended in all its branches: the nodes of its models stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.compositions import built
from support.meshes import add_model, mesh_of
from support.waiting import eventually
from zoo.builders import mlp

from nodes.up.mesh import LocalMesh, push
from shards.split.split import SplitResult, split
from swarm import Status

pytestmark = [pytest.mark.integration, pytest.mark.processes]

BRANCHES = """
[inputs]
x = { datatype = "FP32", shape = [1, 1024] }

[[part]]
name = "a"
model = "left"
inputs = { INPUT = "x" }

[[part]]
name = "b"
model = "right"
inputs = { INPUT = "x" }

[[part]]
name = "both"
mean = ["a.OUTPUT", "b.OUTPUT"]

[outputs]
y = "both.mean"
"""


def model(name: str) -> SplitResult:
    """Some milliseconds a run."""
    return split(mlp(1024, 12), name=name, stages=1, profile=False)


def counted(local: LocalMesh, name: str, counter: str) -> int:
    """Of the node of a model, as it says."""
    node = next(node for node in local.supervisor.nodes if name in node.arguments)
    stages = (local.status_of(node) or {}).get("stages", [])
    return sum(int(stage["counters"][counter]) for stage in stages)


def idle(local: LocalMesh, name: str) -> Callable[[], bool]:
    """Whether the node of a model has nothing in hand, as it says, for the second time."""
    seen: list[int] = []

    def is_idle() -> bool:
        node = next(node for node in local.supervisor.nodes if name in node.arguments)
        status = local.status_of(node) or {}
        seen.append(sum(int(s["in_hand"]) for s in status.get("stages", [])))
        return seen[-1] == 0

    return is_idle


async def test_the_nodes_of_all_parts_stop_computing_what_nobody_waits_for(tmp_path: Path) -> None:
    left, right = model("left"), model("right")
    takes, gives = left.manifest.inputs[0].name, left.manifest.outputs[0].name
    text = BRANCHES.replace("INPUT", takes).replace("OUTPUT", gives)
    async with mesh_of(left, "shard-1") as local:
        await add_model(local, right, "shard-1")
        manifest, files = await built(local, tmp_path, text, "branches")
        await push(local, manifest.to_json(), files)
        local.start("shard-1", "branches")
        await local.ready(60.0)
        x = {"x": np.ones((1, 1024), np.float32)}
        result = await local.mesh.ask("branches", x, 30.0)
        assert result.status is Status.OK, result.message
        asked = [
            asyncio.create_task(local.mesh.infer("branches", x, 60.0), name=f"request {number}")
            for number in range(300)
        ]
        await eventually(lambda: counted(local, "left", "taken") > 20, "requests are computed")
        for task in asked:
            task.cancel()
        ended = await asyncio.gather(*asked, return_exceptions=True)
        cancelled = sum(isinstance(each, asyncio.CancelledError) for each in ended)
        for name in ("left", "right", "branches"):
            await eventually(idle(local, name), f"{name} has nothing in hand")
        served = {name: counted(local, name, "served") for name in ("left", "right")}
        assert cancelled > 100
        assert max(served.values()) < 300, "the others were not computed"
        assert counted(local, "branches", "cancelled") > 0
        result = await local.mesh.ask("branches", x, 30.0)
        assert result.status is Status.OK, "and it serves on"
