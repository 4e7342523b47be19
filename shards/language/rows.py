"""Products in 8-bit integers with a scale for each row: a row's bits depend on no other row.

ONNX Runtime's own dynamic quantization takes one scale for all rows of a run, so that sessions in
one run would change each other's bits.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from shards.graph.graph import Graph
from shards.language.split.graph import token_ids
from shards.quantize.tools import layers

_LARGEST = 127
_ZERO = 128  # of features, which are unsigned: signed ones would be half as fast with VNNI
_SMALLEST = np.float32(1e-20)  # a row of zeros has a scale too
_AXES_ARE_INPUT = 18  # the operator set from which a reduction takes them so


def by_rows(model: ModelProto) -> ModelProto:
    """The model with its products by stored weights, and its embedding, in INT8, as a new message.

    Weights have a scale for each output, features one for each row, found in each run. The model is
    prepared by `shards.quantize.tools.prepare`.
    """
    writer = _Rows(model)
    for node in model.graph.node:
        writer.take(node)
    return writer.model()


class _Rows:
    """Copies a graph node by node."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._graph = Graph.of(model)
        self._ids = token_ids(self._graph)
        self._products = set(layers(model, ("MatMul",)))
        self._opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
        self._nodes: list[NodeProto] = []
        self._stored: dict[str, TensorProto] = {}
        self._quantized: dict[str, tuple[str, str]] = {}  # features and scale by tensor

    def take(self, node: NodeProto) -> None:
        """Add a node, or what stands for it."""
        if node.name in self._products and self._matrix(node.input[1]) is not None:
            self._product(node)
        elif node.op_type == "Gather" and self._is_embedding(node):
            self._embedding(node)
        else:
            copied = NodeProto()
            copied.CopyFrom(node)
            self._nodes.append(copied)

    def model(self) -> ModelProto:
        """The new model, without the weights that are read no more."""
        made = ModelProto()
        made.CopyFrom(self._model)
        del made.graph.node[:], made.graph.initializer[:], made.graph.value_info[:]
        made.graph.node.extend(self._nodes)
        read = {name for node in self._nodes for name in node.input}
        kept = [each for each in self._model.graph.initializer if each.name in read]
        made.graph.initializer.extend([*kept, *self._stored.values()])
        return made

    def _product(self, node: NodeProto) -> None:
        weight = self._matrix(node.input[1])
        assert weight is not None
        codes, scales = _codes(weight, axis=0)
        features, scale = self._features(node.input[0])
        name = node.output[0]
        zero = self._constant("rows.zero", np.array(_ZERO, np.uint8))
        codes_name = self._constant(f"{node.input[1]}.codes", codes)
        whole = self._add("MatMulInteger", [features, codes_name, zero], f"{name}.whole")
        real = self._add("Cast", [whole], f"{name}.real", to=TensorProto.FLOAT)
        scaled = self._add("Mul", [real, scale], f"{name}.scaled")
        scales_name = self._constant(f"{node.input[1]}.scales", scales.reshape(-1))
        self._add("Mul", [scaled, scales_name], name)

    def _features(self, tensor: str) -> tuple[str, str]:
        """A tensor's rows in UINT8, and their scales; made once for all products that read it."""
        if tensor in self._quantized:
            return self._quantized[tensor]
        size = self._add("Abs", [tensor], f"{tensor}.size")
        if self._opset >= _AXES_ARE_INPUT:
            axes = self._constant("rows.axes", np.array([-1], np.int64))
            largest = self._add("ReduceMax", [size, axes], f"{tensor}.largest", keepdims=1)
        else:
            largest = self._add("ReduceMax", [size], f"{tensor}.largest", axes=[-1], keepdims=1)
        smallest = self._constant("rows.smallest", np.array(_SMALLEST))
        positive = self._add("Max", [largest, smallest], f"{tensor}.positive")
        count = self._constant("rows.count", np.array(_LARGEST, np.float32))
        scale = self._add("Div", [positive, count], f"{tensor}.scale")
        parts = self._add("Div", [tensor, scale], f"{tensor}.parts")
        whole = self._add("Round", [parts], f"{tensor}.rounded")
        middle = self._constant("rows.middle", np.array(_ZERO, np.float32))
        moved = self._add("Add", [whole, middle], f"{tensor}.moved")
        features = self._add("Cast", [moved], f"{tensor}.features", to=TensorProto.UINT8)
        self._quantized[tensor] = features, scale
        return features, scale

    def _embedding(self, node: NodeProto) -> None:
        weight = self._matrix(node.input[0])
        assert weight is not None
        codes, scales = _codes(weight, axis=1)
        name, ids = node.output[0], node.input[1]
        table = self._constant(f"{node.input[0]}.codes", codes)
        row = self._add("Gather", [table, ids], f"{name}.row")
        real = self._add("Cast", [row], f"{name}.real", to=TensorProto.FLOAT)
        steps = self._constant(f"{node.input[0]}.scales", scales)
        self._add("Mul", [real, self._add("Gather", [steps, ids], f"{name}.scale")], name)

    def _is_embedding(self, node: NodeProto) -> bool:
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        return node.input[1] in self._ids and axis == 0 and self._matrix(node.input[0]) is not None

    def _matrix(self, name: str) -> np.ndarray | None:
        """A stored matrix of FP32; None for anything else."""
        stored = self._graph.initializers.get(name)
        if stored is None or stored.data_type != TensorProto.FLOAT or len(stored.dims) != 2:
            return None
        return np.asarray(numpy_helper.to_array(stored))

    def _constant(self, name: str, array: np.ndarray) -> str:
        if name not in self._stored:
            self._stored[name] = numpy_helper.from_array(array, name)
        return name

    def _add(self, kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        name = f"{output}.{kind}"
        self._nodes.append(helper.make_node(kind, inputs, [output], name=name, **attributes))
        return output


def _codes(weight: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """INT8 of the matrix's shape, and FP32 scales for what runs along `axis`, in two dimensions."""
    largest = np.abs(weight).max(axis=axis, keepdims=True)
    scales = (np.maximum(largest, _SMALLEST) / _LARGEST).astype(np.float32)
    return np.rint(weight / scales).astype(np.int8), scales
