"""The digits model with a head that has learned nothing: for nodes that learn it together."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from shards.zoo import digits_model

CLASSES = 10
LAST_MAPS = "relu_10"  # the features that the shipped head averages, FP32 [batch, 32, 4, 4]
WIDTH = 32 * 4 * 4


def digits_with_fresh_head() -> bytes:
    """A serialized ONNX model: the layers of `digits_model` up to its last feature maps, flattened,
    and a head of zeros on them. It gives each digit the same probability.

    Input `image` FP32 [batch, 1, 8, 8] in 0..1, output `logits` FP32 [batch, 10], no softmax. The
    head, `logits.weight` FP32 [10, 512] and `logits.bias` FP32 [10], has 5130 parameters.
    """
    model = onnx.load_from_string(digits_model())
    graph = model.graph
    kept = [node for node in graph.node if not _is_head(node)]
    kept.append(helper.make_node("Flatten", [LAST_MAPS], ["features"], name="features"))
    names = ["features", "logits.weight", "logits.bias"]
    kept.append(helper.make_node("Gemm", names, ["logits"], name="logits", transB=1))
    del graph.node[:]
    graph.node.extend(kept)
    stored = [tensor for tensor in graph.initializer if not tensor.name.startswith("logits.")]
    stored.append(numpy_helper.from_array(np.zeros((CLASSES, WIDTH), np.float32), names[1]))
    stored.append(numpy_helper.from_array(np.zeros(CLASSES, np.float32), names[2]))
    del graph.initializer[:]
    graph.initializer.extend(stored)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


def _is_head(node: onnx.NodeProto) -> bool:
    return bool(node.name.startswith("globalaveragepool") or node.name == "logits")
