"""What one model makes for the next one does not pass through the composition's node; the node
that has it may die."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.compositions import compose
from support.meshes import LOOPBACK, READY, add_model, mesh_of
from support.waiting import eventually

from nodes.up.mesh import LocalMesh
from shards.split.split import SplitResult, split
from swarm import Status
from swarm.transport.referred import release
from swarm.wire.tensors import Referred

pytestmark = [pytest.mark.integration, pytest.mark.processes]
SIDE = 256
CHAIN = """
[inputs]
image = { datatype = "FP32", shape = [1, 1, 256, 256] }

[[part]]
name = "front"
model = "front"
inputs = { image = "image" }

[[part]]
name = "rest"
model = "rest"
inputs = { maps = "front.maps" }

[outputs]
sums = "rest.sums"
"""


def model(name: str) -> SplitResult:
    """front: maps of an image; rest: their sums."""
    shape, weights = [1, 1, SIDE, SIDE], np.linspace(-1, 1, 9, dtype="f4").reshape(1, 1, 3, 3)
    if name == "front":
        node = helper.make_node("Conv", ["image", "w"], ["maps"], pads=[1, 1, 1, 1])
        given, made = ("image", shape), ("maps", shape)
        constants = [numpy_helper.from_array(weights, "w")]
    else:
        node = helper.make_node("GlobalAveragePool", ["maps"], ["sums"])
        given, made, constants = ("maps", shape), ("sums", [1, 1, 1, 1]), []
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (given, made)]
    graph = helper.make_graph([node], name, ends[:1], ends[1:], constants)
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(whole)
    return split(whole.SerializeToString(), name=name, version="1", stages=1, bandwidth=LOOPBACK)


def served(local: LocalMesh, name: str) -> int:
    stages = [s for status in local.statuses.values() for s in status.get("stages", ())]
    return sum(s["counters"]["served"] for s in stages if s["model"] == name)


async def test_the_next_model_fetches_what_it_needs_and_a_death_costs_no_answer(
    tmp_path: Path,
) -> None:
    image = np.random.default_rng(1).standard_normal((1, 1, SIDE, SIDE)).astype("f4")
    async with mesh_of(model("front"), "shard-1", shm=False) as local:
        front = local.supervisor.nodes[-1]
        (rest,) = await add_model(local, model("rest"), "shard-1")
        await compose(local, tmp_path, CHAIN, "chain")
        local.start("shard-1", "chain")
        await local.ready(READY)
        mesh, feeds = local.mesh, {"image": image}
        maps = (await mesh.infer("front", feeds, 20.0)).outputs["maps"]
        expected = (await mesh.infer("rest", {"maps": maps}, 20.0)).outputs["sums"].tobytes()

        referred = (await mesh.ask("front", feeds, 20.0, refer=("maps",))).outputs["maps"]
        assert isinstance(referred, Referred)
        answer = await mesh.infer("rest", {"maps": referred}, 20.0)
        assert answer.outputs["sums"].tobytes() == expected
        release(mesh.link, [referred])
        gone = await mesh.ask("rest", {"maps": referred}, 20.0)
        assert gone.status is Status.NOT_FOUND

        assert (await mesh.infer("chain", feeds, 20.0)).outputs["sums"].tobytes() == expected

        rest.signal(signal.SIGSTOP)
        before = served(local, "front")
        asked = asyncio.create_task(mesh.infer("chain", feeds, 60.0))
        await eventually(lambda: served(local, "front") > before, "the maps are made", 20.0)
        front.signal(signal.SIGKILL)
        rest.signal(signal.SIGCONT)
        assert (await asked).outputs["sums"].tobytes() == expected
