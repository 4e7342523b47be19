"""An edge with `--placement` answers the same by every way, and leaves a link that becomes slow."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.link_proxy import LinkProxy
from support.meshes import READY, mesh_of
from support.waiting import eventually
from zoo.builders import mlp

from nodes.up.mesh import LocalMesh, push
from shards.split.split import split

pytestmark = [pytest.mark.integration, pytest.mark.processes]

CAPTURES = 6
WIDTH = 1024  # values of the input, and of each cut
TURNS = 15  # of a busy stage: some milliseconds, more than a way through the mesh


def busy_chain() -> bytes:
    """Three stages that compute long, with a few weights and small cuts."""
    width, value = 256, helper.make_tensor_value_info
    draw = np.random.default_rng(5).standard_normal((width, width), np.float32) / 16
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["rows", "w"], ["turned"]),
            helper.make_node("Tanh", ["turned"], ["next"]),
            helper.make_node("Identity", ["going"], ["goes_on"]),
        ],
        "body",
        [
            value("turn", TensorProto.INT64, []),
            value("going", TensorProto.BOOL, []),
            value("rows", TensorProto.FLOAT, [64, width]),
        ],
        [
            value("goes_on", TensorProto.BOOL, []),
            value("next", TensorProto.FLOAT, [64, width]),
        ],
    )
    nodes, tensor = [], "input"
    for stage in "123":
        nodes += [
            helper.make_node("Tile", [tensor, "high"], [f"tall_{stage}"]),
            helper.make_node("Reshape", [f"tall_{stage}", "shape"], [f"rows_{stage}"]),
            helper.make_node("Loop", ["turns", "", f"rows_{stage}"], [f"l_{stage}"], body=body),
            helper.make_node("Slice", [f"l_{stage}", "zero", "four"], [f"few_{stage}"]),
            helper.make_node("Reshape", [f"few_{stage}", "line"], [f"cut_{stage}"]),
        ]
        tensor = f"cut_{stage}"
    nodes.append(helper.make_node("ReduceMax", [tensor], ["most"]))
    constants = {
        "w": draw,
        "turns": np.array(TURNS),
        "high": np.array([1, 16]),
        "shape": np.array([64, width]),
        "line": np.array([1, WIDTH]),
        "zero": np.array([0]),
        "four": np.array([4]),
    }
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    inputs = [value("input", TensorProto.FLOAT, [1, WIDTH])]
    outputs = [value("most", TensorProto.FLOAT, [1, 1])]
    graph = helper.make_graph(nodes, "busy", inputs, outputs, initializer=weights)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


@asynccontextmanager
async def mesh(graph: bytes, **how: Any) -> AsyncIterator[LocalMesh]:
    model = split(graph, name="mlp", profile=False, **how)
    async with mesh_of(shm=False) as local:
        await push(local, model.manifest.to_json(), model.files)
        local.start("fallback", "mlp", "--max-batch", "1")  # a batch has other bits
        await local.ready(READY)
        yield local


def source(folder: Path) -> str:
    path = folder / "captures.npz"
    np.savez(path, input=np.random.default_rng(3).random((CAPTURES, WIDTH), np.float32))
    return str(path)


def results(local: LocalMesh, sink: str) -> list[dict[str, Any]]:
    """The results of a sink, as they come."""
    lines: list[dict[str, Any]] = []
    subject = local.mesh.subjects.results(sink)
    local.mesh.link.subscribe(subject, lambda message: lines.append(json.loads(message.data)))
    return lines


async def test_every_way_answers_the_same_bits(tmp_path: Path) -> None:
    captures = source(tmp_path)
    async with mesh(mlp(WIDTH, 5), stages=3) as local:
        modes = ("edge", "split", "core")
        told = {mode: results(local, mode) for mode in modes}
        await local.mesh.link.flush()
        for mode in modes:
            words = ["--placement", mode, "--allow-picture", "--source", captures, "--sink", mode]
            local.start("edge", "mlp", *words, "--rate", "20", "--on-full", "block", "--no-shm")
        enough = 2 * CAPTURES
        await eventually(lambda: min(map(len, told.values())) >= enough, "all answer", READY)
        outputs: dict[int, str] = {}
        for mode, lines in told.items():
            ways = {line.get("way", "") for line in lines}
            assert ways <= ({"split@2", "split@3"} if mode == "split" else {mode})
            for line in lines[:enough]:
                assert line["status"] == "OK", line
                assert [hop["stage"] for hop in line["hops"]] == [1, 2, 3]
                bits = json.dumps(line["outputs"])
                assert outputs.setdefault(line["sequence"] % CAPTURES, bits) == bits


@pytest.mark.benchmark  # a whole story, longer than ten seconds on a busy machine
async def test_an_edge_leaves_a_link_that_becomes_slow(tmp_path: Path) -> None:
    """Captures queue for its one thread longer than the mesh takes, however fast the machine is:
    some go to the mesh, until the link to it is slow."""
    captures = source(tmp_path)
    async with mesh(busy_chain(), cuts=["cut_1", "cut_2"]) as local:
        assert local.server is not None
        async with LinkProxy(local.server.port) as link:
            lines = results(local, "placed")
            await local.mesh.link.flush()
            words = ["--placement", "auto", "--allow-picture", "--source", captures]
            words += ["--sink", "placed", "--rate", "1000", "--in-flight", "4", "--no-shm"]
            words += ["--nats", f"nats://127.0.0.1:{link.port}"]
            local.start("edge", "mlp", *words)

            def away(latest: int) -> int:
                return sum(line["way"] != "edge" for line in lines[-latest:])

            await eventually(lambda: len(lines) > 50 and away(50) >= 5, "some leave", READY)
            link.rate = 20_000.0
            await eventually(lambda: away(100) == 0, "none leaves", READY)
            assert all(line["status"] == "OK" for line in lines[-100:])
