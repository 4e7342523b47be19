"""An ONNX file as a device reads it: its weights by name, its layers, and the file written anew.

The field numbers are those of `onnx/onnx.proto` (https://github.com/onnx/onnx). Everything that is
not asked for here is copied as it came.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np

from shards.errors import ModelError
from shards.specs import DTYPES, TensorSpec
from shards.weights.protobuf import (
    BYTES,
    FIXED32,
    VARINT,
    Field,
    bytes_field,
    fields,
    joined,
    number_field,
    signed,
    text,
    text_field,
    varints,
)

# ModelProto, GraphProto, NodeProto, AttributeProto, TensorProto, ValueInfoProto.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER, _GRAPH_INPUT, _GRAPH_OUTPUT = 1, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT, _NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 2, 4, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_GRAPHS = 1, 2, 3, (6, 11)
_TENSOR_DIMS, _TENSOR_TYPE, _TENSOR_NAME, _TENSOR_RAW = 1, 2, 8, 9
_TENSOR_FLOATS, _TENSOR_INTS, _TENSOR_DOUBLES = 4, 5, 10
_TENSOR_EXTERNAL, _TENSOR_LOCATION = 13, 14
_EXTERNAL = 1
FIELDS_OF_ANY = 4096  # parts that a graph of any size may have
BYTES_A_FIELD = 16  # beyond these; a layer with its names takes about 100, a weight more
MOST_DIMENSIONS = 64
LARGEST_DIMENSION = 1 << 40
_FLOAT_TYPES = {1: "FP32", 10: "FP16", 11: "FP64"}
_TYPE_NUMBERS = {datatype: number for number, datatype in _FLOAT_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Layer:
    """One node of a graph. `begin` and `end` are its place in the graph's message.

    `numbers` are its attributes that are one integer or one float, by name. `is_plain` says that it
    has no graph of its own, which might read any tensor.
    """

    operator: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    numbers: Mapping[str, float] = field(default_factory=dict)
    is_plain: bool = True


class OnnxFile:
    """One serialized ONNX model. Nothing is copied before a tensor is asked for.

    Raises ModelError for bytes that are no ONNX model.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data).cast("B")
        self._top = _few_fields(self._data)
        graphs = [part for part in self._top if part.number == _MODEL_GRAPH and part.kind == BYTES]
        if len(graphs) != 1:
            raise ModelError("not an ONNX model: it has no graph")
        self._graph = graphs[0].data
        self._parts = _few_fields(self._graph)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The nodes, in the order of the file, which is topological."""
        return tuple(_layer(part) for part in self._parts if part.number == _GRAPH_NODE)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the graph's inputs."""
        return tuple(_value_name(part) for part in self._parts if part.number == _GRAPH_INPUT)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the graph's outputs."""
        return tuple(_value_name(part) for part in self._parts if part.number == _GRAPH_OUTPUT)

    @cached_property
    def specs(self) -> dict[str, TensorSpec]:
        """Names, datatypes and shapes of the weights: the initializers of a float type.

        Other initializers are shapes, indices or tables of the graph, which nobody trains.
        """
        return {name: spec for name, (spec, _) in self._weights.items()}

    def weight(self, name: str) -> np.ndarray:
        """A weight as a new, writable array. Raises ModelError when the file does not hold it."""
        try:
            spec, part = self._weights[name]
        except KeyError:
            raise ModelError(f"the model has no weight {name!r}") from None
        return _array(spec, part)

    @cached_property
    def _weights(self) -> dict[str, tuple[TensorSpec, Field]]:
        found: dict[str, tuple[TensorSpec, Field]] = {}
        for part in self._parts:
            if part.number == _GRAPH_INITIALIZER:
                spec = _float_spec(part)
                if spec is not None:
                    found[spec.name] = (spec, part)
        return found

    def rewritten(
        self,
        *,
        outside: Iterable[str] = (),
        as_inputs: Iterable[str] = (),
        values: Mapping[str, np.ndarray] | None = None,
    ) -> bytes:
        """The model with some of its weights elsewhere.

        `outside` weights lose their bytes: they are declared external, and a session gets them when
        it is made. `as_inputs` weights become inputs of the graph. `values` replaces the bytes of
        weights that stay in the file.
        """
        outside, as_inputs, values = set(outside), set(as_inputs), values or {}
        parts: list[bytes | memoryview] = []
        places = {id(part): name for name, (_, part) in self._weights.items()}
        for part in self._parts:
            name = places.get(id(part), "")
            spec = self.specs.get(name)
            if spec is None:
                parts.append(self._graph[part.begin : part.end])
            elif name in as_inputs:
                parts.append(_input_of(spec))
            elif name in outside:
                parts.append(bytes_field(_GRAPH_INITIALIZER, _outside_tensor(spec)))
            elif name in values:
                parts.append(bytes_field(_GRAPH_INITIALIZER, _tensor(spec, values[name])))
            else:
                parts.append(self._graph[part.begin : part.end])
        return self._with_graph(joined(parts))

    def until(self, output: str, datatype: str, kept: Callable[[Layer], bool]) -> bytes:
        """The model cut off: of its layers those that are `kept`, and one tensor as its output.

        Weights that no kept layer reads are left out.
        """
        layers = dict(zip(self._layer_parts(), self.layers, strict=True))
        staying = {id(part): layer for part, layer in layers.items() if kept(layer)}
        has_graphs = any(not layer.is_plain for layer in staying.values())
        read = {name for layer in staying.values() for name in layer.inputs}
        places = {id(part): name for name, (_, part) in self._weights.items()}
        parts: list[bytes | memoryview] = []
        for part in self._parts:
            if part.number == _GRAPH_NODE and id(part) not in staying:
                continue
            name = places.get(id(part))
            if part.number == _GRAPH_OUTPUT or (
                name is not None and name not in read and not has_graphs
            ):
                continue
            parts.append(self._graph[part.begin : part.end])
        parts.append(bytes_field(_GRAPH_OUTPUT, _value_info(output, datatype, None)))
        return self._with_graph(joined(parts))

    def _layer_parts(self) -> list[Field]:
        return [part for part in self._parts if part.number == _GRAPH_NODE]

    def _with_graph(self, graph: bytes) -> bytes:
        return joined(
            bytes_field(_MODEL_GRAPH, graph)
            if part.number == _MODEL_GRAPH
            else self._data[part.begin : part.end]
            for part in self._top
        )


def _few_fields(message: memoryview) -> list[Field]:
    """All fields of a message. Raises ModelError for more than its size explains: each becomes an
    object of hundreds of bytes, and the shortest has two."""
    most = FIELDS_OF_ANY + len(message) // BYTES_A_FIELD
    found = list(islice(fields(message), most + 1))
    if len(found) > most:
        raise ModelError(f"not an ONNX model: more than {most} parts in {len(message)} bytes")
    return found


def _layer(part: Field) -> Layer:
    inputs: list[str] = []
    outputs: list[str] = []
    operator, domain, plain = "", "", True
    numbers: dict[str, float] = {}
    for inner in fields(part.data):
        if inner.number == _NODE_INPUT:
            inputs.append(text(inner))
        elif inner.number == _NODE_OUTPUT:
            outputs.append(text(inner))
        elif inner.number == _NODE_OPERATOR:
            operator = text(inner)
        elif inner.number == _NODE_DOMAIN:
            domain = text(inner)
        elif inner.number == _NODE_ATTRIBUTE:
            name, number, has_graph = _attribute(inner)
            plain = plain and not has_graph
            if number is not None:
                numbers[name] = number
    return Layer(operator, domain, tuple(inputs), tuple(outputs), numbers, plain)


def _attribute(part: Field) -> tuple[str, float | None, bool]:
    """Name, number (None for another type), and whether the attribute holds a graph."""
    name, number, has_graph = "", None, False
    for inner in fields(part.data):
        if inner.number == _ATTRIBUTE_NAME:
            name = text(inner)
        elif inner.number == _ATTRIBUTE_FLOAT and inner.kind == FIXED32:
            number = float(struct.unpack("<f", inner.data)[0])
        elif inner.number == _ATTRIBUTE_INT and inner.kind == VARINT:
            number = signed(inner.value)
        elif inner.number in _ATTRIBUTE_GRAPHS:
            has_graph = True
    return name, number, has_graph


def _value_name(part: Field) -> str:
    return next((text(inner) for inner in fields(part.data) if inner.number == 1), "")


def _float_spec(part: Field) -> TensorSpec | None:
    """The specification of a stored tensor; None for one that is no weight."""
    name, kind, outside = "", 0, False
    dims: list[int] = []
    for inner in fields(part.data):
        if inner.number == _TENSOR_DIMS:
            if len(inner.data) > 10 * MOST_DIMENSIONS or len(dims) > MOST_DIMENSIONS:
                raise ModelError(f"a weight of more than {MOST_DIMENSIONS} dimensions")
            dims.extend([inner.value] if inner.kind == VARINT else varints(inner.data))
        elif inner.number == _TENSOR_TYPE:
            kind = inner.value
        elif inner.number == _TENSOR_NAME:
            name = text(inner)
        elif inner.number == _TENSOR_LOCATION:
            outside = inner.value == _EXTERNAL
    if kind not in _FLOAT_TYPES or outside or not name:
        return None
    if len(dims) > MOST_DIMENSIONS or max(dims, default=0) > LARGEST_DIMENSION:
        raise ModelError(f"weight {name!r:.80}: no array has the shape {dims!r:.80}")
    return TensorSpec(name, _FLOAT_TYPES[kind], tuple(dims))


def _array(spec: TensorSpec, part: Field) -> np.ndarray:
    """Raises ModelError when the bytes do not make the shape."""
    chunks: list[np.ndarray] = []
    for inner in fields(part.data):
        if inner.number == _TENSOR_RAW:
            chunks.append(_view(inner.data, spec.dtype))
        elif inner.number == _TENSOR_FLOATS:
            chunks.append(_view(inner.data, np.dtype("<f4")))
        elif inner.number == _TENSOR_DOUBLES:
            chunks.append(_view(inner.data, np.dtype("<f8")))
        elif inner.number == _TENSOR_INTS:  # half precision, as its bits
            bits = [inner.value] if inner.kind == VARINT else varints(inner.data)
            if max(bits, default=0) > 0xFFFF:
                raise ModelError(f"weight {spec.name!r:.80}: a half has 16 bits")
            chunks.append(np.array(bits, np.uint16).view(np.float16))
    flat = np.concatenate(chunks) if chunks else np.empty(0, spec.dtype)
    if flat.dtype != spec.dtype or flat.size != math.prod(spec.shape):
        raise ModelError(f"weight {spec.name!r}: its bytes do not make a {spec}")
    try:
        return flat.reshape(spec.shape)
    except ValueError:  # a dimension of 0 beside ones whose product no array may have
        raise ModelError(f"weight {spec.name!r}: no array has the shape {spec}") from None


def _view(data: memoryview, dtype: np.dtype[np.generic]) -> np.ndarray:
    if len(data) % dtype.itemsize:
        raise ModelError(f"a weight of {len(data)} bytes is no row of {dtype.name}")
    return np.frombuffer(data, dtype)


def _input_of(spec: TensorSpec) -> bytes:
    return bytes_field(_GRAPH_INPUT, _value_info(spec.name, spec.datatype, spec.shape))


def _head_of_tensor(spec: TensorSpec) -> bytes:
    dims = joined(number_field(_TENSOR_DIMS, dim) for dim in spec.shape)
    kind = number_field(_TENSOR_TYPE, _TYPE_NUMBERS[spec.datatype])
    return dims + kind + text_field(_TENSOR_NAME, spec.name)


def _tensor(spec: TensorSpec, array: np.ndarray) -> bytes:
    raw = np.ascontiguousarray(array, DTYPES[spec.datatype]).tobytes()
    return _head_of_tensor(spec) + bytes_field(_TENSOR_RAW, raw)


def _outside_tensor(spec: TensorSpec) -> bytes:
    # The name of the file is never opened: the session gets the tensor itself under this name.
    entries = {"location": "weights", "offset": "0", "length": str(spec.nbytes)}
    external = joined(
        bytes_field(_TENSOR_EXTERNAL, text_field(1, key) + text_field(2, value))
        for key, value in entries.items()
    )
    return _head_of_tensor(spec) + external + number_field(_TENSOR_LOCATION, _EXTERNAL)


def _value_info(name: str, datatype: str, shape: tuple[int, ...] | None) -> bytes:
    """A named tensor of a graph. Without a shape, the reader finds the shape out."""
    kind = number_field(1, _TYPE_NUMBERS[datatype])
    if shape is not None:
        kind += bytes_field(2, joined(bytes_field(1, number_field(1, dim)) for dim in shape))
    return text_field(1, name) + bytes_field(2, bytes_field(1, kind))
