"""Which operators make a graph's outputs."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import NodeProto

from shards.graph.graph import Graph

# They move or convert values, and change none by more than a type's rounding.
_KEEPING = frozenset(
    {"Identity", "Cast", "CastLike", "Dropout", "QuantizeLinear", "DequantizeLinear"}
    | {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand"}
)
# With those of ONNX Runtime's own set, which quantized models have.
SOFTMAX = frozenset({"Softmax", "QLinearSoftmax"})
SIGMOID = frozenset({"Sigmoid", "QLinearSigmoid", "HardSigmoid"})


def made_by(graph: Graph, operators: frozenset[str]) -> frozenset[str]:
    """The outputs whose values one of these operators makes, told through what keeps values."""
    makers: dict[str, NodeProto] = {
        name: node for node in graph.model.graph.node for name in node.output
    }
    return frozenset(name for name in graph.outputs if _maker(makers, name) in operators)


def _maker(makers: Mapping[str, NodeProto], name: str) -> str:
    """The operator that makes a tensor's values, "" for an input."""
    while (node := makers.get(name)) is not None:
        if node.op_type not in _KEEPING:
            return str(node.op_type)
        name = node.input[0]
    return ""
