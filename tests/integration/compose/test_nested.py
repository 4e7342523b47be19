"""A composition that asks a composition, on real nodes: killed in the middle, and at its bounds."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from composed import IMAGE, second, steady
from support.commands import said
from support.compositions import compose
from support.meshes import all_ready, close, digits, mesh_of
from support.waiting import GENEROUS, eventually

import swarm
from nodes.up.mesh import LocalMesh
from swarm import Result, Status

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]
INNER = (
    IMAGE
    + """
[[part]]
name = "each"
map = "second"
inputs = { image = "image" }
most = 64

[outputs]
logits = "each.logits"
"""
)
OUTER = (
    IMAGE
    + """
[[part]]
name = "one"
model = "inner"
inputs = { image = "image" }

[[part]]
name = "other"
model = "second"
inputs = { image = "image" }

[[part]]
name = "both"
mean = ["one.logits", "other.logits"]

[outputs]
logits = "both.mean"
"""
)
CROPS = """
[inputs]
image = { datatype = "FP32", shape = [1, 1, -1, -1] }
boxes = { datatype = "FP32", shape = [-1, 4] }

[[part]]
name = "rest"
select = { of = "boxes", start = 1, stop = 100000 }

[[part]]
name = "crops"
crop = { image = "image", boxes = "rest.selected", size = [8, 8] }

[[part]]
name = "each"
map = "second"
inputs = { image = "crops.crops" }
most = 1024

[[part]]
name = "wide"
resize = { of = "crops.crops", size = [64, 64] }

[outputs]
logits = "each.logits"
wide = "wide.resized"
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def local(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalMesh]:
    folder = tmp_path_factory.mktemp("nested")
    async with mesh_of(second(), "shard-1") as made:
        for name, text in (("inner", INNER), ("outer", OUTER), ("crops", CROPS)):
            await compose(made, folder, text, name)
            made.start("shard-1", name)
            await made.ready(60.0)
        made.start("shard-1", "inner")
        await made.ready(60.0)
        yield made


async def test_a_killed_inner_composition_loses_no_request(local: LocalMesh) -> None:
    images, logits = digits()
    right, wrong = [0], list[str]()

    async def one(number: int) -> None:
        rows = (np.arange(40) + number) % len(images)
        result = await local.mesh.ask("outer", {"image": images[rows]}, 60.0)
        if result.status is Status.OK and close(result.outputs["logits"], logits[rows]):
            right[0] += 1
        else:
            wrong.append(f"{result.status}: {result.message}")

    async def more(count: int) -> None:
        before = right[0]
        await eventually(lambda: right[0] >= before + count, f"{count} answers", 60.0)

    async with steady(one, 0.05):
        for node in [node for node in local.supervisor.nodes if "inner" in node.arguments]:
            await more(10)
            node.signal(signal.SIGKILL)
            await more(20)
            await all_ready(local)
    assert wrong == []


def crops(count: int, size: int = 8, rows: int = 4) -> dict[str, np.ndarray]:
    """Of all boxes but the first."""
    boxes = np.tile(np.array([[0, 0, 1, 1]], np.float32), (count + 1, 1))[:, :rows]
    return {"image": np.ones((1, 1, size, size), np.float32), "boxes": boxes}


@pytest.mark.parametrize(
    ("inputs", "status", "why"),
    [
        (crops(3), Status.OK, ""),
        (crops(0), Status.OK, ""),
        (crops(1000), Status.OK, ""),
        (crops(10_000), Status.INVALID_ARGUMENT, "part '"),
        (crops(3, rows=3), Status.INVALID_ARGUMENT, "boxes"),
        (crops(3) | {"image": np.ones((1, 1, 8, 8), np.uint8)}, Status.INVALID_ARGUMENT, "image"),
        ({"image": crops(1)["image"]}, Status.INVALID_ARGUMENT, "boxes"),
    ],
    ids=["fits", "no rows", "many rows", "too many rows", "shape", "datatype", "absent"],
)
async def test_what_is_beyond_a_bound_is_refused_at_once(
    local: LocalMesh, inputs: dict[str, Any], status: Status, why: str
) -> None:
    result: Result = await local.mesh.ask("crops", inputs, GENEROUS)
    assert (result.status, why in result.message) == (status, True), result.message
    assert result.latency < GENEROUS / 2
    if status is Status.OK:
        count = len(inputs["boxes"]) - 1
        assert result.outputs["logits"].shape == (count, 10)
        assert result.outputs["wide"].shape == (count, 1, 64, 64)


async def test_a_joined_result_above_max_payload_is_refused(local: LocalMesh) -> None:
    """To a client on the same host it goes by shared memory."""
    async with swarm.connect(local.url, local.name, shm=False) as far:
        result = await far.ask("crops", crops(1024), GENEROUS)
    assert result.status is Status.INVALID_ARGUMENT, result.message
    assert "max_payload" in result.message
    assert result.latency < GENEROUS / 2


async def test_a_failed_run_shows_which_part_failed_and_which_ended(
    local: LocalMesh, tmp_path: Any
) -> None:
    np.savez(tmp_path / "x.npz", **crops(2000))
    where = ("--nats", local.url, "--mesh", local.name)
    words = ("infer", "crops", "--input", str(tmp_path / "x.npz"), "--explain", *where)
    told = await asyncio.to_thread(said, *words)
    assert told.code != 0
    tree = {line.split()[0]: line for line in told.stdout.splitlines() if " ms" in line}
    assert "failed: part 'each': 2000 rows are asked for, of 1024 at most" in tree["each"]
    assert "operator: crop" in tree["crops"]
    assert "cancelled" not in tree["crops"]
