"""Shapes and ranks that a graph does not tell: splits neither guess them nor refuse the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper
from shard_graphs import chained, floats, make, node, same, value, whole

from shards.errors import InputError
from shards.graph.graph import Graph
from shards.graph.tensor_types import infer_sizes, infer_types
from shards.runtimes.load import load_stage
from shards.split.split import split

NUMBERS = {"axis": np.array([1]), "one": np.array(1)}


def branch(*nodes: NodeProto) -> object:
    last = nodes[-1].output[0]
    return helper.make_graph(list(nodes), last, [], [value(last, None)])


def behind(*nodes: NodeProto, inputs: Sequence[object]) -> ModelProto:
    """The nodes that make `f`, with a few layers behind them."""
    rest = [node("Neg", ["f"], ["n"]), node("Tanh", ["n"], ["t"]), node("Exp", ["t"], ["y"])]
    return make([*nodes, *rest], inputs, [value("y", None)], NUMBERS)  # type: ignore[arg-type]


def squeeze_by_condition(*shape: str | int) -> ModelProto:
    """`x.squeeze(1)` as tracers write it: where axis 1 is not of size 1, nothing is squeezed."""
    return behind(
        node("Relu", ["x"], ["h"]),
        node("Shape", ["h"], ["s"]),
        node("Gather", ["s", "one"], ["size"]),
        node("Equal", ["size", "one"], ["is_one"]),
        node(
            "If",
            ["is_one"],
            ["f"],
            then_branch=branch(node("Squeeze", ["h", "axis"], ["squeezed"])),
            else_branch=branch(node("Identity", ["h"], ["kept"])),
        ),
        inputs=[value("x", shape)],
    )


def input_without_shape() -> ModelProto:
    return behind(node("Relu", ["x"], ["f"]), inputs=[value("x", None)])


def rows_of_a_loop() -> ModelProto:
    """The first `trips` rows of x. A run of no trips stacks them to something of another rank."""
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["go_on"]),
            node("Gather", ["h", "at"], ["row"]),
            node("Abs", ["row"], ["made"]),
        ],
        "body",
        [value("at", [], TensorProto.INT64), value("go", [], TensorProto.BOOL)],
        [value("go_on", [], TensorProto.BOOL), value("made", None)],
    )
    return behind(
        node("Relu", ["x"], ["h"]),
        node("Loop", ["trips", ""], ["f"], body=body),
        inputs=[value("x", None), value("trips", [], TensorProto.INT64)],
    )


CASES = {
    "squeezed by a condition": (
        squeeze_by_condition("N", "C", 8),
        [{"x": floats(1, 1, 8)}, {"x": floats(1, 3, 8)}, {"x": floats(4, 1, 8)}],
    ),
    "an input without a shape": (
        input_without_shape(),
        [{"x": floats(*shape)} for shape in ((2, 3), (4,), (1, 3, 5, 7), ())],
    ),
    "rows that a loop stacks": (
        rows_of_a_loop(),
        [
            {"x": floats(4, *shape), "trips": np.array(trips)}
            for shape in ((3,), (3, 2))
            for trips in (0, 1, 3)
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_rank_that_the_model_takes_is_served_where_none_was_told(case: str) -> None:
    model, requests = CASES[case]
    data = model.SerializeToString()
    result = split(data, name="m", stages=2)
    assert not result.notes
    for feeds in requests:
        feeds = {name: np.asarray(array) for name, array in feeds.items()}
        same(whole(data, feeds), chained(result, feeds))


def test_a_scalar_is_told_from_a_tensor_of_unknown_rank() -> None:
    types = infer_types(Graph.of(rows_of_a_loop()))
    assert {name: kind.any_rank for name, kind in types.items()} == {
        "x": True,
        "trips": False,
        "h": True,
        "f": True,
        "n": True,
        "t": True,
        "y": True,
    }
    assert str(types["trips"].spec()) == "INT64[]"
    assert str(types["x"].spec()) == "FP32 of any shape"


def test_a_told_rank_is_still_checked() -> None:
    result = split(squeeze_by_condition("N", "C", 8).SerializeToString(), name="m", stages=2)
    stage = load_stage(result.manifest, 1, result.files.__getitem__, self_test=False)
    with pytest.raises(InputError, match=r"expected FP32\[\?,\?,8\], got float32\[1,8\]"):
        stage.run({"x": floats(1, 8)})


def test_a_batch_of_any_rank_needs_an_axis_for_its_rows() -> None:
    result = split(input_without_shape().SerializeToString(), name="m", stages=2, batch="on")
    stage = load_stage(result.manifest, 1, result.files.__getitem__)
    requests = [{"x": floats(1, 3)}, {"x": floats(2, 3)}, {"x": floats(1, 3, 2)}]
    for feeds, made in zip(requests, stage.run_batch(requests), strict=True):
        same(stage.run(feeds), made)
    with pytest.raises(InputError, match=r"an axis 0 with the rows of a batch, got float32\[\]"):
        stage.check({"x": np.asarray(floats())})


def test_sizes_are_those_of_the_inputs_where_a_branch_is_invalid_at_them() -> None:
    graph = Graph.of(squeeze_by_condition("N", "C", 8))
    types = infer_types(graph)
    sizes = infer_sizes(graph, types, {"x": (2, 3, 8)})
    assert sizes["x"].shape == sizes["h"].shape == (2, 3, 8)
    assert sizes["f"].any_rank
    assert types["h"].shape == ("N", "C", 8)
