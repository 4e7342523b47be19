"""A model whose Loop never ends on some values."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 8
CUT = "x"  # before the Loop


def endless_model(*, never_ends: bool = False) -> bytes:
    """Input `input` FP32 [1, 8], output `out` of the same shape: max(0, input + 1). On zeros its
    Loop turns for ever; never_ends: on every value."""
    node, value = helper.make_node, helper.make_tensor_value_info
    body = helper.make_graph(
        [
            node("Mul", [CUT, CUT], ["squares"]),
            node("ReduceSum", ["squares"], ["sum"], keepdims=0),
            node("Less", ["sum", "bound"], ["goes_on"]),
            node("Identity", ["value"], ["next"]),
        ],
        "body",
        [
            value("turn", TensorProto.INT64, []),
            value("going", TensorProto.BOOL, []),
            value("value", TensorProto.FLOAT, [1, WIDTH]),
        ],
        [
            value("goes_on", TensorProto.BOOL, []),
            value("next", TensorProto.FLOAT, [1, WIDTH]),
        ],
    )
    nodes = [
        node("Add", ["input", "one"], ["more"]),
        node("Sub", ["more", "one"], [CUT]),
        node("Loop", ["turns", "yes", CUT], ["looped"], body=body),
        node("Add", ["looped", "one"], ["sums"]),
        node("Relu", ["sums"], ["positive"]),
        node("MatMul", ["positive", "same"], ["out"]),
    ]
    constants = {
        "one": np.float32(1),
        "bound": np.float32(np.inf if never_ends else 1e-6),
        "same": np.eye(WIDTH, dtype=np.float32),
        "turns": np.int64(2**62),
        "yes": np.bool_(True),
    }
    graph = helper.make_graph(
        nodes,
        "endless",
        [value("input", TensorProto.FLOAT, [1, WIDTH])],
        [value("out", TensorProto.FLOAT, [1, WIDTH])],
        initializer=[numpy_helper.from_array(np.array(v), k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())
