"""Writes ONNX graphs: names, initializers and nodes, in the order in which they are added.

All models of the zoo have opset 17 (the first one with LayerNormalization) and IR version 9 (which
every onnxruntime that this project accepts can read). Their weights are inline. Equal graphs are
serialized to equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 9
BATCH_AXIS = "batch"

FLOAT: int = TensorProto.FLOAT
INT64: int = TensorProto.INT64


class GraphWriter:
    """One graph under construction. Weights are drawn from `seed`: equal calls give equal bytes."""

    def __init__(self, name: str, *, batch: int | None = None, seed: int = 0) -> None:
        self.name = name
        self.batch = batch
        self.random = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._initializers: dict[str, Any] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, shape: Sequence[int], datatype: int = FLOAT) -> str:
        """A graph input of `shape`, without its leading batch axis."""
        self._inputs.append(self._value(name, shape, datatype))
        return name

    def output(self, name: str, shape: Sequence[int], datatype: int = FLOAT) -> None:
        """Declares tensor `name` a graph output of `shape`, without its leading batch axis."""
        self._outputs.append(self._value(name, shape, datatype))

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """An initializer. A name that is there already keeps its first value."""
        if name not in self._initializers:
            self._initializers[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def scalar(self, name: str, value: float) -> str:
        """An FP32 initializer of rank 0."""
        return self.constant(name, np.array(value, np.float32))

    def weight(self, name: str, shape: Sequence[int], fan_in: int, gain: float = 2.0) -> str:
        """An FP32 initializer, normal with variance `gain / fan_in` (He: arXiv 1502.01852)."""
        draw = self.random.standard_normal(tuple(shape), dtype=np.float32)
        return self.constant(name, draw * np.float32(np.sqrt(gain / fan_in)))

    def add(self, operator: str, inputs: Iterable[str], output: str, **attributes: Any) -> str:
        """A node with one output; node and output share their name. Returns that name."""
        self._nodes.append(
            helper.make_node(operator, list(inputs), [output], name=output, **attributes)
        )
        return output

    def dense(self, tensor: str, output: str, inputs: int, outputs: int, gain: float = 2.0) -> str:
        """A Gemm with drawn weights [outputs, inputs] and a small drawn bias."""
        weight = self.weight(f"{output}.weight", [outputs, inputs], inputs, gain)
        bias = self.weight(f"{output}.bias", [outputs], 1, gain=0.01)
        return self.add("Gemm", [tensor, weight, bias], output, transB=1)

    def to_bytes(self) -> bytes:
        """The serialized ModelProto."""
        graph = helper.make_graph(
            self._nodes,
            self.name,
            self._inputs,
            self._outputs,
            initializer=list(self._initializers.values()),
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="swarm-mesh",
        )
        onnx.checker.check_model(model)
        return bytes(model.SerializeToString(deterministic=True))

    def _value(self, name: str, shape: Sequence[int], datatype: int) -> Any:
        axis = BATCH_AXIS if self.batch is None else self.batch
        return helper.make_tensor_value_info(name, datatype, [axis, *shape])
