"""Types and shapes of every tensor of a graph, as ONNX Runtime infers them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from onnx import ModelProto, TensorProto, TypeProto, ValueInfoProto, helper

from shards.errors import ModelError
from shards.graph.graph import Graph
from shards.graph.source import PROTOBUF_LIMIT, tensor_bytes, weight_bytes
from shards.runtimes.ort import Beside, make_session
from shards.specs import DTYPES, ORT_TYPES, TensorSpec

log = logging.getLogger(__name__)

# Bytes. Type inference looks into shapes, axes and scales; a larger weight is none of these.
_LARGEST_SHAPE_WEIGHT = 4096


@dataclass(frozen=True, slots=True)
class TensorType:
    """Type and shape of one tensor.

    `ort` is ONNX Runtime's name of the type, such as "tensor(float)". Each dimension of `shape` is
    a size, the name of a symbol, or None (unknown). Where `any_rank` is set nothing tells how many
    axes there are, and the shape is empty.
    """

    name: str
    ort: str
    shape: tuple[int | str | None, ...]
    any_rank: bool = False

    @property
    def datatype(self) -> str | None:
        """The Open Inference Protocol's name of the type; None if it cannot cross the mesh."""
        return ORT_TYPES.get(self.ort)

    @property
    def refusal(self) -> str:
        """Why a tensor of a type without `datatype` cannot cross the mesh."""
        also = ", BYTES to clients" if self.ort == "tensor(string)" else ""
        return (
            f"{self.name!r} is a {self.ort}{also}, which cannot cross the mesh: tensors there are "
            f"{', '.join(DTYPES)}"
        )

    def spec(self, *, batch: bool = False) -> TensorSpec:
        """The specification, with -1 for every size that is not fixed.

        `batch` says that axis 0 is a batch axis, where there may be one. Raises ModelError for
        unsupported types.
        """
        if self.datatype is None:
            raise ModelError(self.refusal)
        shape = tuple(dim if isinstance(dim, int) else -1 for dim in self.shape)
        has_axes = bool(shape) or self.any_rank
        return TensorSpec(self.name, self.datatype, shape, batch and has_axes, self.any_rank)

    def value_info(self) -> ValueInfoProto:
        """The declaration of a shard's input or output. An empty shape is left open."""
        element = helper.np_dtype_to_tensor_dtype(self.spec().dtype)
        return helper.make_tensor_value_info(
            self.name, element, list(self.shape) if self.shape else None
        )


def infer_types(graph: Graph) -> dict[str, TensorType]:
    """The types of all model inputs, model outputs and tensors that a node makes, by name.

    Raises ModelError when the runtime refuses the graph.
    """
    types = _inferred(graph, {})
    unclear = [
        name for name, kind in types.items() if not kind.shape and kind.ort.startswith("tensor(")
    ]
    if unclear:
        # The runtime gives an empty shape to a scalar and to a tensor of unknown rank alike. Only
        # a scalar's shape is known to have no elements.
        asked = {_shape_name(name): name for name in unclear}
        shapes = _inferred(graph, {}, asked)
        for made, name in asked.items():
            if shapes[made].shape != (0,):
                types[name] = replace(types[name], any_rank=True)
    return types


def infer_sizes(
    graph: Graph, types: Mapping[str, TensorType], shapes: Mapping[str, Sequence[int]]
) -> dict[str, TensorType]:
    """The types where the model's inputs have these shapes, as far as they are known.

    `types` are those of `infer_types`. The shapes are concrete, unless they depend on data. A graph
    may have a branch that is valid at other sizes only, such as that of a squeeze which an exporter
    wrote as an If. The runtime refuses it at these. Only sizes that the inputs name are given then.
    """
    try:
        return _inferred(graph, shapes)
    except ModelError as error:
        log.debug("sizes are those that the inputs name: %s", error)
    sizes: dict[str | None, int] = {}
    for name, shape in shapes.items():
        named = zip(types[name].shape, shape, strict=False)
        sizes.update((dim, size) for dim, size in named if isinstance(dim, str))
    return {
        name: replace(
            kind,
            shape=tuple(dim if isinstance(dim, int) else sizes.get(dim) for dim in kind.shape),
        )
        for name, kind in types.items()
    }


def _inferred(
    graph: Graph, fixed: Mapping[str, Sequence[int]], shapes_of: Mapping[str, str] | None = None
) -> dict[str, TensorType]:
    """The types as the runtime infers them, by name, with the shapes of `fixed` for inputs.

    `shapes_of` names tensors that hold the shapes of others. Where they are given, only they are
    inferred. Raises ModelError when the runtime refuses the graph.
    """
    names = dict.fromkeys(shapes_of or (*graph.producer, *graph.outputs))
    probe = partial(_probe, graph, names, fixed, shapes_of or {})
    try:
        session = make_session(probe(keep_weights=False), level="none")
    except ModelError:
        # A few operators insist on constant weights, so the second try keeps the weights.
        if graph.folder is None and weight_bytes(graph.model) >= PROTOBUF_LIMIT:
            raise
        kept = probe(keep_weights=True)
        session = make_session(
            kept if graph.folder is None else Beside(kept, graph.folder), level="none"
        )
    types = {
        arg.name: TensorType(arg.name, arg.type, tuple(_dim(d) for d in arg.shape))
        for arg in (*session.get_outputs(), *session.get_inputs())
    }
    return {name: types[name] for name in names}


def _shape_name(name: str) -> str:
    """The name of the tensor that holds the shape of this one."""
    return f"{name}/shape of"


def _dim(dim: object) -> int | str | None:
    """A dimension as ONNX Runtime gives it; None where the size is unknown."""
    if isinstance(dim, int):
        return dim if dim >= 0 else None
    return dim if isinstance(dim, str) else None


def _probe(
    graph: Graph,
    names: Mapping[str, None],
    fixed: Mapping[str, Sequence[int]],
    shapes_of: Mapping[str, str],
    *,
    keep_weights: bool,
) -> bytes:
    """A model with the named tensors as outputs without a type, for the runtime to infer.

    It makes the shapes that `shapes_of` names by nodes of its own. Unless `keep_weights`, large
    weights become inputs, so that they are not copied.
    """
    source = graph.model
    probe = ModelProto(ir_version=source.ir_version)
    probe.opset_import.extend(source.opset_import)
    probe.graph.name = "probe"
    probe.graph.node.extend(source.graph.node)
    probe.graph.node.extend(helper.make_node("Shape", [of], [n]) for n, of in shapes_of.items())
    probe.graph.sparse_initializer.extend(source.graph.sparse_initializer)
    for tensor in source.graph.initializer:
        if (
            not keep_weights
            and tensor_bytes(tensor) > _LARGEST_SHAPE_WEIGHT
            and tensor.name not in names
        ):
            probe.graph.input.append(_declared(tensor))
        else:
            probe.graph.initializer.append(tensor)
    for value in source.graph.input:
        probe.graph.input.append(_fix(value, fixed.get(value.name)))
    inputs = set(graph.inputs)
    probe.graph.output.extend(ValueInfoProto(name=n) for n in names if n not in inputs)
    if not probe.graph.output:
        probe.graph.output.extend(v for v in probe.graph.input if v.name in graph.outputs)
    return bytes(probe.SerializeToString())


def _declared(tensor: TensorProto) -> ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))


def _fix(value: ValueInfoProto, shape: Sequence[int] | None) -> ValueInfoProto:
    """The declaration of an input with this shape instead of its own, if one is given."""
    if shape is None:
        return value
    element = value.type.tensor_type.elem_type
    kind = TypeProto()
    kind.CopyFrom(helper.make_tensor_type_proto(element, list(shape)))
    return ValueInfoProto(name=value.name, type=kind)
