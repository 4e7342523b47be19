"""Whether the rows of a batch stay apart in a graph, told from its structure alone.

The values of the model's inputs are rows along axis 0. Each operator's rule says what its outputs
are. What no rule shows to keep rows apart is mixed, and says so with the operator's name. A model
may be batched where each output is rows along axis 0.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, numpy_helper

from shards.batch.rules import RULES
from shards.batch.sizes import ROWS, Size, Symbol
from shards.batch.step import OperatorStep
from shards.batch.values import Dims, Rows, RowsMayMix, Value
from shards.graph.graph import Graph, is_random, names_read
from shards.graph.tensor_types import TensorType

# Elements of a stored tensor: shapes, axes and scales have no more; indices have no more.
_FEW, _MOST = 64, 1 << 16


@dataclass(frozen=True)
class FollowedTensors:
    """What is known about each tensor of a graph, by name.

    `why` says why the model may not be batched, "" where its structure shows that it may.
    """

    values: Mapping[str, Value]
    why: str

    def crosses(self, name: str) -> str:
        """Why the rows of this tensor are not rows of requests; "" where they are."""
        value = self.values[name]
        if value.mixed:
            return value.mixed
        if value.rows is None:
            return f"{name!r} has no rows: it is the same for each request"
        if value.rows.number is not None:
            return f"{name!r} holds the numbers that rows have in their batch"
        if value.rows.axis == 0 and value.rows != Rows(0):
            return f"axis 0 of {name!r} has the size {value.rows.size}, not one for each row"
        if value.rows != Rows(0):
            return (
                f"{name!r} has the rows of a batch along axis {value.rows.axis}, not along axis 0"
            )
        return ""


def follow(graph: Graph, types: Mapping[str, TensorType]) -> FollowedTensors:
    """Follow the rows of a batch through the graph."""
    values = {name: _stored(tensor) for name, tensor in graph.initializers.items()}
    values |= {
        name: Value(tuple(Size.of(int(dim)) for dim in tensor.dims))
        for name, tensor in graph.sparse.items()
    }
    why = ""
    counts = {types[name].shape[0] for name in graph.inputs if types[name].shape}
    for name in graph.inputs:
        shape = types[name].shape
        no = _no_rows(types[name], counts)
        why = why or no
        values[name] = (
            Value(None, mixed=no) if no else Value((ROWS, *_sizes(name, shape)[1:]), Rows(0))
        )
    versions = {opset.domain: int(opset.version) for opset in graph.model.opset_import}
    follower = _Follower(versions, types)
    follower.run(values, list({id(node): node for node in graph.constant_nodes.values()}.values()))
    follower.run(values, graph.nodes)
    found = FollowedTensors(values, why)
    reasons = (found.crosses(name) for name in graph.outputs)
    return FollowedTensors(values, why or next((each for each in reasons if each), ""))


class _Follower:
    """Runs the rules of a model's operators."""

    def __init__(self, versions: Mapping[str, int], types: Mapping[str, TensorType]) -> None:
        self._versions = versions
        self._types = types

    def run(self, values: dict[str, Value], nodes: Iterable[NodeProto]) -> None:
        """Add the values of what the nodes make; they are in topological order."""
        for node in nodes:
            made = self._made(node, values)
            values.update((n, v) for n, v in zip(node.output, made, strict=False) if n)

    def _made(self, node: NodeProto, values: Mapping[str, Value]) -> list[Value]:
        read = [values[name] for name in names_read(node)]
        count = len(node.output)
        mixed = next((value.mixed for value in read if value.mixed), "")
        # The sizes of a tensor may be known where what it holds is not.
        if mixed and (node.op_type not in ("Shape", "Size") or values[node.input[0]].dims is None):
            return [Value(None, mixed=mixed)] * count
        step = self._step(node, values)
        try:
            made = self._by_rule(step, values)
        except RowsMayMix as doubt:
            if all(value.same for value in read) and not is_random(node):
                return [Value(self._dims(name)) for name in node.output]
            return [Value(None, mixed=step.doubt(str(doubt)))] * count
        made += [Value(None, mixed=step.doubt("it has more outputs"))] * (count - len(made))
        return [self._checked(step, *each) for each in zip(node.output, made, strict=False)]

    def _checked(self, step: OperatorStep, name: str, value: Value) -> Value:
        """The value, unless ONNX Runtime infers another size of an axis."""
        kind = self._types.get(name)
        for mine, theirs in zip(value.dims or (), kind.shape if kind else (), strict=False):
            if isinstance(theirs, int) and mine.number not in (None, theirs):
                doubt = f"its output has the size {mine}, or {theirs}"
                return Value(None, mixed=step.doubt(doubt))
        return value

    def _step(self, node: NodeProto, values: Mapping[str, Value]) -> OperatorStep:
        version = self._versions.get(node.domain)
        if version is None:
            version = self._versions.get("ai.onnx" if not node.domain else "", 1)
        return OperatorStep(
            node, version, tuple(values[name] if name else None for name in node.input)
        )

    def _by_rule(self, step: OperatorStep, values: Mapping[str, Value]) -> list[Value]:
        node = step.node
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain == "" and node.op_type == "If":
            return self._branches(step, values)
        if domain == "" and node.op_type == "Constant":
            return [_constant(step)]
        if domain not in ("", "ai.onnx.ml", "com.microsoft"):
            raise RowsMayMix(f"nothing is known here about operators of {domain}")
        rule = RULES.get((domain, node.op_type))
        if rule is None:
            raise RowsMayMix("nothing is known here about this operator")
        try:
            return list(rule(step))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # A form of the operator that its rule does not expect shows nothing about its rows.
            raise RowsMayMix(f"it has a form that is not known here ({error!r:.80})") from error

    def _branches(self, step: OperatorStep, values: Mapping[str, Value]) -> list[Value]:
        """The outputs of an If: those of the branch that is taken, or what both have in common."""
        condition = step.value(0)
        if condition.rows is not None:
            raise RowsMayMix("its condition depends on data")
        branches = [step.attribute("then_branch"), step.attribute("else_branch")]
        number = condition.elements[0].number if condition.elements else None
        if number is not None:
            return self._subgraph(branches[0 if number else 1], values)
        if condition.counts_rows:
            raise RowsMayMix("its condition depends on the number of rows in the batch")
        one, other = (self._subgraph(branch, values) for branch in branches)
        for mine, theirs in zip(one, other, strict=True):
            if mine.mixed or theirs.mixed:
                continue
            if (mine.dims, mine.rows, mine.elements) != (theirs.dims, theirs.rows, theirs.elements):
                raise RowsMayMix("its branches have different shapes")
        return [theirs if theirs.mixed else mine for mine, theirs in zip(one, other, strict=True)]

    def _subgraph(self, body: GraphProto, values: Mapping[str, Value]) -> list[Value]:
        """The outputs of a branch, which sees the tensors around it."""
        inner = dict(values) | {tensor.name: _stored(tensor) for tensor in body.initializer}
        if body.sparse_initializer:
            raise RowsMayMix("one of its branches stores a sparse tensor")
        self.run(inner, body.node)
        return [inner[value.name] for value in body.output]

    def _dims(self, name: str) -> Dims | None:
        """The sizes of a tensor that depends on no data, as ONNX Runtime infers them."""
        kind = self._types.get(name)
        return _sizes(name, kind.shape) if kind is not None and kind.shape else None


def _sizes(name: str, shape: tuple[int | str | None, ...]) -> Dims:
    """Declared sizes as formulas. Sizes of one name are equal, as the standard says."""
    return tuple(
        Size.of(dim if isinstance(dim, int) else Symbol(f"'{dim}'" if dim else f"{name}.{axis}"))
        for axis, dim in enumerate(shape)
    )


def _no_rows(kind: TensorType, counts: Container[int | str | None]) -> str:
    """Why an input has no rows along axis 0, "" where it has. `counts` are all inputs' sizes of
    axis 0."""
    name, shape = kind.name, kind.shape
    if kind.any_rank:
        return f"nothing tells how many axes input {name!r} has, and a batch needs an axis 0"
    if not shape:
        return f"input {name!r} has no axes, and a batch needs an axis 0"
    if isinstance(shape[0], int):
        return (
            f"axis 0 of input {name!r} has the size {shape[0]}, and a batch needs one of any size"
        )
    if any(isinstance(dim, str) and dim in counts for dim in shape[1:]):
        return f"input {name!r} has the number of rows along another axis too"
    return ""


def _stored(tensor: TensorProto) -> Value:
    """A stored tensor. Small ones are read."""
    dims = tuple(Size.of(int(dim)) for dim in tensor.dims)
    count = math.prod(tensor.dims)
    if count > _MOST or tensor.data_type == TensorProto.STRING:
        return Value(dims)
    if count > _FEW and tensor.data_type not in (TensorProto.INT64, TensorProto.INT32):
        return Value(dims)
    array = numpy_helper.to_array(tensor)
    if array.dtype.kind not in "iub":
        return Value(dims, None, None, array)
    below = Size.of(int(array.max()) + 1) if count and array.min() >= 0 else None
    elements = tuple(Size.of(int(each)) for each in array.reshape(-1)) if count <= _FEW else None
    return Value(dims, None, elements, array, below=below)


def _constant(step: OperatorStep) -> Value:
    """A Constant, in one of the ways to write it."""
    for attribute in step.node.attribute:
        if attribute.type == AttributeProto.TENSOR:
            return _stored(attribute.t)
        if attribute.name in ("value_int", "value_ints", "value_float", "value_floats"):
            value = step.attribute(attribute.name)
            kind = np.int64 if "int" in attribute.name else np.float32
            return _stored(numpy_helper.from_array(np.asarray(value, kind)))
    raise RowsMayMix("it is a constant of another kind")
