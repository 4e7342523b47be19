"""Two models with the same first layers, asked as one: the backbone computes once a request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.commands import said
from support.meshes import digits, mesh_of
from support.waiting import eventually

from nodes.up.mesh import LocalMesh
from shards.zoo import digits_model

pytestmark = [pytest.mark.integration, pytest.mark.processes]
READY = 60.0  # seconds
ASKED = 12


def second_head() -> bytes:
    """The digits model with other weights in its last layer."""
    model = onnx.load_from_string(digits_model())
    read = set(model.graph.node[-1].input)
    for tensor in model.graph.initializer:
        if tensor.name in read:
            other = numpy_helper.to_array(tensor) * np.float32(0.5)
            tensor.CopyFrom(numpy_helper.from_array(other, tensor.name))
    return bytes(model.SerializeToString())


def done(*arguments: str) -> None:
    answer = said(*arguments)
    assert answer.code == 0, answer.stderr


def served(local: LocalMesh, model: str) -> int:
    stages: list[Any] = [s for status in local.statuses.values() for s in status.get("stages", ())]
    return sum(s["counters"]["served"] for s in stages if s["model"] == model)


async def test_a_backbone_computes_once_for_two_heads(tmp_path: Path) -> None:
    files = {"first": digits_model(), "second": second_head()}
    for name, data in files.items():
        (tmp_path / f"{name}.onnx").write_bytes(data)
    out = tmp_path / "out"
    paths = [str(tmp_path / f"{name}.onnx") for name in files]
    await asyncio.to_thread(done, "compose", "share", *paths, "-o", str(out))
    async with mesh_of() as local:
        mesh = ("--nats", local.url, "--mesh", local.name)

        def put(name: str, file: Path) -> None:
            folder = str(tmp_path / f"split-{name}")
            done("model", "split", str(file), "--stages", "1", "--name", name, "-o", folder)
            done("model", "push", folder, *mesh)

        parts = [path.stem for path in out.glob("*.onnx")]
        assert sorted(parts) == ["backbone", "first-head", "second-head"]
        for name in parts:
            await asyncio.to_thread(put, name, out / f"{name}.onnx")
        for name in files:
            await asyncio.to_thread(put, name, tmp_path / f"{name}.onnx")
        for name in (*parts, *files):
            local.start("shard-1", name, "--allow-unsigned")
        await local.ready(READY)
        built = str(tmp_path / "built")
        await asyncio.to_thread(
            done, "compose", "build", str(out / "shared.toml"), "-o", built, *mesh
        )
        await asyncio.to_thread(done, "model", "push", built, *mesh)
        local.start("shard-1", "shared", "--allow-unsigned")
        await local.ready(READY)
        images, _ = digits()
        for image in images[:ASKED]:
            feeds = {"image": image[None]}
            both = await local.mesh.infer("shared", feeds, 20.0)
            for name in files:
                alone = await local.mesh.infer(name, feeds, 20.0)
                answer = both.outputs[f"{name}_logits"]
                assert answer.tobytes() == alone.outputs["logits"].tobytes()
        for name in ("backbone", *(f"{name}-head" for name in files)):
            # Statuses come once a second.
            await eventually(lambda name=name: served(local, name) >= ASKED, "all are told")
            assert served(local, name) == ASKED, "once for each request"
