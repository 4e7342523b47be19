"""Errors of ONNX Runtime reach people as errors of this package, with the node's name."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto
from shard_graphs import floats, make, node, value

from shards.errors import ModelError, RunError, ShardsError
from shards.runtimes.ort import OrtRuntime
from shards.runtimes.runtime import CancelToken
from shards.split.split import split

# What only a developer of the library reads, and what colours a terminal.
NOISE = ("ONNXRuntimeError", "onnxruntime::", ".h:", ".cc:", "\x1b", "Non-zero status", "[1;31m")


def ends_with(op: str, *more: str, name: str = "wide", **stored: np.ndarray) -> ModelProto:
    """A model that is sound up to its last node."""
    nodes = [node("Relu", ["x"], ["a"]), node(op, ["a", *more], ["y"], name=name)]
    return make(nodes, [value("x", ["N", "C"])], [value("y", None)], stored)


FAILS_IN_A_RUN = {
    "reshape": ends_with("Reshape", "w", w=np.array([2, 4])),
    "matmul": ends_with("MatMul", "w", w=np.ones((5, 5), np.float32)),
    "gather": ends_with("Gather", "w", w=np.array([7])),
    "concat": make(
        [node("Concat", ["x", "w"], ["y"], name="wide", axis=1)],
        [value("x", ["N", "C"])],
        [value("y", None)],
        {"w": np.ones((5, 5), np.float32)},
    ),
}
REFUSED = {
    "unknown operator": ends_with("Fold"),
    "shapes": make(
        [node("MatMul", ["x", "w"], ["y"], name="wide")],
        [value("x", ["N", 3])],
        [value("y", None)],
        {"w": np.ones((4, 4), np.float32)},
    ),
    "types": ends_with("Add", "w", w=np.ones(3, np.int64)),
}


def is_plain(error: ShardsError, printed: str) -> None:
    assert "wide" in str(error)
    assert not [noise for noise in NOISE if noise in str(error)], str(error)
    assert printed == ""


@pytest.mark.parametrize("how", FAILS_IN_A_RUN)
@pytest.mark.parametrize("cancel", [None, CancelToken()], ids=["plain", "cancellable"])
def test_a_run_that_fails_names_the_node_and_prints_nothing(
    how: str, cancel: CancelToken | None, capfd: pytest.CaptureFixture[str]
) -> None:
    runtime = OrtRuntime(FAILS_IN_A_RUN[how].SerializeToString())
    with pytest.raises(RunError) as caught:
        runtime.run({"x": floats(1, 3)}, cancel)
    is_plain(caught.value, "".join(capfd.readouterr()))


@pytest.mark.parametrize("how", FAILS_IN_A_RUN)
def test_an_example_that_does_not_run_names_the_node_and_prints_nothing(
    how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError) as caught:
        split(FAILS_IN_A_RUN[how].SerializeToString(), name="m", example={"x": floats(1, 3)})
    is_plain(caught.value, "".join(capfd.readouterr()))


@pytest.mark.parametrize("how", REFUSED)
def test_a_model_that_is_refused_names_the_node_and_prints_nothing(
    how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError) as caught:
        split(REFUSED[how].SerializeToString(), name="m")
    is_plain(caught.value, "".join(capfd.readouterr()))


def test_a_node_without_a_name_is_named_by_its_operator() -> None:
    runtime = OrtRuntime(
        ends_with("MatMul", "w", name="", w=np.ones((5, 5), np.float32)).SerializeToString()
    )
    with pytest.raises(RunError, match=r"a node without a name \(MatMul\): "):
        runtime.run({"x": floats(1, 3)})
