"""tritonclient speaks HTTP to the mesh unchanged: each call is answered, or refused by name."""

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
CLIENT = Path(__file__).with_name("triton_http_client.py")
NARROW_RESNET = resnet50(224, 0.25)  # its input is ResNet-50's own: 0.6 MB

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mesh() -> AsyncIterator[tuple[LocalMesh, str]]:
    """A mesh with digits, and a gateway's address."""
    async with mesh_of(split_digits(stages=2), "shard-1", "shard-2") as local:
        node = await gateway_of(local, "--http", "0")
        yield local, address(local, node).removeprefix("http://")


async def driven(
    where: str, model: str, feed: dict[str, np.ndarray], folder: Path, *kind: str
) -> Any:
    """The report of `triton_http_client.py`."""
    np.savez(folder / "inputs.npz", **feed)
    command = [sys.executable, str(CLIENT), where, model, str(folder / "inputs.npz"), *kind]
    return json.loads(await printed(*command))


def check_outputs(report: Any, expected: dict[str, np.ndarray]) -> None:
    """Every way through the protocol gives the whole model's outputs."""
    assert len(report["outputs"]) == 8
    for way, outputs in report["outputs"].items():
        for name, array in expected.items():
            assert close(np.array(outputs[name], array.dtype), array), (way, name)


@pytest.mark.parametrize("kind", [(), ("aio",)])
async def test_tritonclient_drives_digits_and_hears_what_is_not_offered(
    mesh: tuple[LocalMesh, str], kind: tuple[str, ...], tmp_path: Path
) -> None:
    _, where = mesh
    images, logits = digits()
    report = await driven(where, "digits", {"image": images[:1]}, tmp_path, *kind)
    check_outputs(report, {"logits": logits[:1]})
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


@pytest.mark.parametrize(
    "name",
    [
        "resnet",
        pytest.param(
            "ultraface",
            marks=pytest.mark.skipif(not ULTRAFACE.exists(), reason=f"{ULTRAFACE} is absent"),
        ),
    ],
)
async def test_a_camera_program_of_tritonclient_gets_the_whole_models_outputs(
    mesh: tuple[LocalMesh, str], name: str, tmp_path: Path
) -> None:
    local, where = mesh
    model = ULTRAFACE.read_bytes() if name == "ultraface" else NARROW_RESNET
    result = await asyncio.to_thread(
        split, model, name=name, stages=2, bandwidth=1e6, profile=False
    )
    await add_model(local, result, "shard-1", "shard-2")
    [spec] = result.manifest.inputs
    shape = [max(1, size) for size in spec.shape]
    feed = {spec.name: np.random.default_rng(1).random(shape, np.float32)}
    expected = await asyncio.to_thread(whole, model, [feed])
    report = await driven(where, name, feed, tmp_path)
    check_outputs(report, expected[0])
