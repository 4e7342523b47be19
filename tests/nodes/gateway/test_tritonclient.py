"""tritonclient speaks HTTP and gRPC to the mesh unchanged: each call is answered, or refused by
name, and tensors pass in memory of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
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
HERE = Path(__file__).parent
HTTP_WAYS, GRPC_WAYS = 8, 9  # in which the programs ask for the same
Feed = dict[str, np.ndarray]
NARROW_RESNET = resnet50(224, 0.25)  # its input is ResNet-50's own: 0.6 MB

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]


@dataclass
class Rig:
    """A mesh with digits. plain, grpc, shm: addresses of a gateway for HTTP alone, and of one for
    both that takes clients' memory."""

    local: LocalMesh
    plain: str
    grpc: str
    shm: str

    async def http(self, model: str, feed: Feed, folder: Path, *kind: str) -> Any:
        """The report of `triton_http_client.py`."""
        return await driven("triton_http_client.py", self.plain, model, feed, folder, *kind)

    async def both(self, model: str, feed: Feed, folder: Path) -> Any:
        """The report of `triton_grpc_client.py`."""
        return await driven("triton_grpc_client.py", self.grpc, model, feed, folder, self.shm)


async def driven(program: str, where: str, model: str, feed: Feed, folder: Path, *more: str) -> Any:
    np.savez(folder / "inputs.npz", **feed)
    command = [sys.executable, str(HERE / program), where, model, str(folder / "inputs.npz")]
    return json.loads(await printed(*command, *more))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig() -> AsyncIterator[Rig]:
    async with mesh_of(split_digits(stages=2), "shard-1", "shard-2") as local:
        plain = await gateway_of(local, "--http", "0")
        node = await gateway_of(local, "--http", "0", "--grpc", "0", "--allow-client-shm")
        at = [address(local, each).removeprefix("http://") for each in (plain, node)]
        yield Rig(local, at[0], address(local, node, "grpc"), at[1])


def check_outputs(report: Any, expected: Feed, ways: int) -> None:
    """Every way through the protocol gives the whole model's outputs."""
    assert len(report["outputs"]) == ways
    for way, outputs in report["outputs"].items():
        for name, array in expected.items():
            assert close(np.array(outputs[name], array.dtype), array), (way, name)


@pytest.mark.parametrize("kind", [(), ("aio",)])
async def test_tritonclient_drives_digits_and_hears_what_is_not_offered(
    rig: Rig, kind: tuple[str, ...], tmp_path: Path
) -> None:
    images, logits = digits()
    report = await rig.http("digits", {"image": images[:1]}, tmp_path, *kind)
    check_outputs(report, {"logits": logits[:1]}, HTTP_WAYS)
    assert report["live"] is report["ready"] is report["model ready"] is True
    assert report["absent ready"] is False
    assert report["metadata"]["inputs"] == [
        {"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}
    ]
    assert report["metadata"]["versions"] == ["1"]
    assert report["config"]["input"][0]["data_type"] == "TYPE_FP32"
    [listed] = report["index"]
    assert (listed["name"], listed["version"], listed["state"]) == ("digits", "1", "READY")
    [counted] = report["statistics"]["model_stats"]
    assert counted["inference_stats"]["success"]["count"] >= 8
    assert counted["inference_stats"]["compute_infer"]["ns"] > 0
    response = report["response"]
    assert (response["id"], response["model_version"]) == ("mine", "1")
    hops = json.loads(response["parameters"]["hops"])
    assert [hop["stage"] for hop in hops] == [1, 2]
    assert response["parameters"]["degraded"] is False
    said = {
        "unknown model": "[404] Request for unknown model: model 'absent'",
        "unknown version": "[404] model 'digits' version '77'",
        "unknown output": "no output 'absent': it has logits",
        "classes": "[501] output 'logits': classes (class_count",
        "BYTES": "[400] input 'text': datatype BYTES is not taken",
        "datatype": "[400] input 'image' must be FP32",
        "sequence": "[501] sequences",
        "too late": "[504]",
        "load": "[501] models are not loaded",
        "unload": "[501] models are not unloaded",
        "system memory": "[501] this gateway takes no shared memory of clients",
        "GPU memory": "[501] shared memory of GPUs",
        "trace": "[501] trace settings",
        "log": "[501] settings of logs",
    }
    assert report["refused"].keys() == said.keys()
    for case, text in said.items():
        assert text in report["refused"][case], (case, report["refused"][case])


async def test_digits_come_the_same_by_calls_streams_and_shared_memory(
    rig: Rig, tmp_path: Path
) -> None:
    images, logits = digits()
    report = await rig.both("digits", {"image": images[:1]}, tmp_path)
    check_outputs(report, {"logits": logits[:1]}, GRPC_WAYS)
    assert report["counted"] >= 29


@pytest.mark.parametrize(
    "name",
    [
        "resnet",
        pytest.param(
            "ultraface",
            marks=[
                pytest.mark.benchmark,  # by default a smaller model goes the same ways
                pytest.mark.skipif(not ULTRAFACE.exists(), reason=f"{ULTRAFACE} is absent"),
            ],
        ),
    ],
)
async def test_a_camera_program_of_tritonclient_gets_the_whole_models_outputs(
    rig: Rig, name: str, tmp_path: Path
) -> None:
    model = ULTRAFACE.read_bytes() if name == "ultraface" else NARROW_RESNET
    result = await asyncio.to_thread(
        split, model, name=name, stages=2, bandwidth=1e6, profile=False
    )
    await add_model(rig.local, result, "shard-1", "shard-2")
    [spec] = result.manifest.inputs
    shape = [max(1, size) for size in spec.shape]
    feed = {spec.name: np.random.default_rng(1).random(shape, np.float32)}
    [expected] = await asyncio.to_thread(whole, model, [feed])
    check_outputs(await rig.http(name, feed, tmp_path), expected, HTTP_WAYS)
    check_outputs(await rig.both(name, feed, tmp_path), expected, GRPC_WAYS)
