"""tritonclient speaks gRPC to the mesh unchanged, and passes tensors in memory of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from support.foreign_library import printed
from support.gateways import address, gateway_of
from support.meshes import add_model, close, digits, mesh_of, split_digits, whole
from zoo.convnets import resnet50

from nodes.up.mesh import LocalMesh
from shards.split.split import split

MODELS = Path(os.environ.get("SWARM_TEST_MODELS", Path(__file__).parents[4] / "shared/models"))
ULTRAFACE = MODELS / "ultraface" / "version-RFB-320.onnx"
CLIENT = Path(__file__).with_name("triton_grpc_client.py")
NARROW_RESNET = resnet50(224, 0.25)  # its input is ResNet-50's own: 0.6 MB

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh() -> AsyncIterator[tuple[LocalMesh, list[str]]]:
    """A mesh with digits, and a gateway's addresses for gRPC and HTTP."""
    async with mesh_of(split_digits(stages=1), "shard-1") as local:
        node = await gateway_of(local, "--http", "0", "--grpc", "0", "--allow-client-shm")
        http = address(local, node).removeprefix("http://")
        yield local, [address(local, node, "grpc"), http]


async def driven(
    where: list[str], model: str, feed: dict[str, np.ndarray], folder: Path
) -> dict[str, Any]:
    """The report of `triton_grpc_client.py`."""
    np.savez(folder / "inputs.npz", **feed)
    grpc, *http = where
    command = [sys.executable, str(CLIENT), grpc, model, str(folder / "inputs.npz"), *http]
    report: dict[str, Any] = json.loads(await printed(*command))
    return report


def check_outputs(report: dict[str, Any], expected: dict[str, np.ndarray], ways: int) -> None:
    """Every way through the protocol gives the whole model's outputs."""
    assert len(report["outputs"]) == ways
    for way, outputs in report["outputs"].items():
        for name, array in expected.items():
            assert close(np.array(outputs[name], array.dtype), array), (way, name)


async def test_digits_come_the_same_by_calls_streams_and_shared_memory(
    mesh: tuple[LocalMesh, list[str]], tmp_path: Path
) -> None:
    images, logits = digits()
    report = await driven(mesh[1], "digits", {"image": images[:1]}, tmp_path)
    check_outputs(report, {"logits": logits[:1]}, 9)
    assert report["counted"] >= 29


@pytest.mark.parametrize("model", ["ultraface", "narrow-resnet"])
async def test_a_detector_and_a_classifier_come_the_same(
    mesh: tuple[LocalMesh, list[str]], model: str, tmp_path: Path
) -> None:
    if model == "ultraface" and not ULTRAFACE.exists():
        pytest.skip(f"the trained detector is not here: {ULTRAFACE}")
    data = ULTRAFACE.read_bytes() if model == "ultraface" else NARROW_RESNET
    result = await asyncio.to_thread(split, data, name=model, stages=1, profile=False)
    local, where = mesh
    await add_model(local, result, "shard-1")
    [spec] = result.manifest.inputs
    shape = tuple(abs(dimension) for dimension in spec.shape)
    feed = {spec.name: np.random.default_rng(1).random(shape, np.float32)}
    report = await driven(where, model, feed, tmp_path)
    check_outputs(report, (await asyncio.to_thread(whole, data, [feed]))[0], 9)
