"""Requests in flight together get the answers that each would get alone, whatever the model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from support.commands import Commands

import swarm
from shards.runtimes.ort import make_session

pytestmark = [pytest.mark.integration, pytest.mark.processes, pytest.mark.benchmark]

WIDTH, LAYERS, REQUESTS = 512, 8, 60


def network(scaled: list[NodeProto]) -> ModelProto:
    """A network of some milliseconds behind `scaled`, which makes `z` out of `x`: requests wait
    for each other, and would share runs."""
    rng = np.random.default_rng(0)
    nodes, last = list(scaled), "z"
    numbers = {"limit": 1, "hundred": 100, "byte": 255}
    stored = {name: np.array(number, np.float32) for name, number in numbers.items()}
    for layer in range(LAYERS):
        stored[f"w{layer}"] = (rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
        nodes.append(helper.make_node("MatMul", [last, f"w{layer}"], [f"h{layer}"]))
        nodes.append(helper.make_node("Relu", [f"h{layer}"], [f"r{layer}"]))
        last = f"r{layer}"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    shape = ["N", WIDTH, WIDTH // 8]
    nodes.insert(len(scaled), helper.make_node("Transpose", ["z"], ["zt"], perm=[0, 2, 1]))
    nodes[len(scaled) + 1].input[0] = "zt"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", WIDTH // 8, WIDTH])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def branching() -> ModelProto:
    """If any value of the batch is above 1, all are bytes: x / 255. Traced models have such."""
    info = helper.make_tensor_value_info
    bodies = [
        helper.make_graph([made], name, [], [info(made.output[0], TensorProto.FLOAT, None)])
        for name, made in (
            ("bytes", helper.make_node("Div", ["x", "byte"], ["as_bytes"])),
            ("floats", helper.make_node("Identity", ["x"], ["as_floats"])),
        )
    ]
    return network(
        [
            helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
            helper.make_node("Greater", ["largest", "limit"], ["above"]),
            helper.make_node("If", ["above"], ["z"], then_branch=bodies[0], else_branch=bodies[1]),
        ]
    )


def bounded() -> ModelProto:
    """x / max(largest of all, 100): no branch, and rows meet only at some scales."""
    return network(
        [
            helper.make_node("ReduceMax", ["x"], ["largest"], keepdims=0),
            helper.make_node("Max", ["largest", "hundred"], ["bound"]),
            helper.make_node("Div", ["x", "bound"], ["z"]),
        ]
    )


def picture(number: int) -> np.ndarray:
    """FP32 [1, …] of one request: every second one has bytes, the others are from 0 to 1."""
    values = np.random.default_rng(number).random((1, WIDTH, WIDTH // 8), np.float32)
    return values * 255 if number % 2 else values


@pytest.mark.parametrize("model", [branching(), bounded()], ids=["condition", "bound"])
async def test_sixty_requests_in_flight_get_the_answers_of_each_alone(
    model: ModelProto, run: Commands, tmp_path: Path
) -> None:
    file = tmp_path / "net.onnx"
    onnx.save(model, file)
    session = make_session(model.SerializeToString(), level="basic")
    inputs = [picture(number) for number in range(REQUESTS)]
    expected = [session.run(["y"], {"x": each})[0] for each in inputs]
    up = run.start("nodes.cli.main", "up", "--model", str(file), "--stages", "2", "--json")
    ready = await asyncio.to_thread(up.ready_line)
    async with swarm.connect(ready["nats"]) as mesh:
        results = await asyncio.gather(
            *(mesh.infer("net", {"x": each}, budget=30.0) for each in inputs)
        )
    wrong = [
        number
        for number, (right, result) in enumerate(zip(expected, results, strict=True))
        if np.abs(result.outputs["y"] - right).max() > 1e-5 * np.abs(right).max()
    ]
    batched = max(hop.batch for result in results for hop in result.hops)
    assert not wrong, f"{len(wrong)} of {REQUESTS} are wrong, in batches of up to {batched}"
