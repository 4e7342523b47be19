"""Reading an ONNX model from a file or from bytes into one normal form.

In normal form all weights are inside the message, no initializer is also an input, and there is no
training information. The runtime's fusion pass does everything else.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, helper

from shards.errors import ModelError
from shards.foreign import foreign

# Bytes of weights. Protobuf cannot serialize a message of 2 GiB or more; 16 MiB are left for nodes.
PROTOBUF_LIMIT = 2**31 - 2**24
# Bytes of a weight from which on it may lie outside the message while a model is split.
LEAST_EXTERNAL = 1 << 16


def read_model(source: bytes | os.PathLike[str] | str) -> tuple[ModelProto, str]:
    """Read a model from a file (with its external data) or from bytes.

    Returns the model and the SHA-256 of its bytes, external data included. Raises ModelError when
    this is not an ONNX model, and for bytes that refer to external data: only a path can.
    """
    if isinstance(source, bytes):
        model = _parse(source, "the model")
        external = next((t for t in _stored_tensors(model.graph) if _is_external(t)), None)
        if external is not None:
            raise ModelError(
                f"weight {external.name!r} lies in a file of its own, which bytes cannot refer to: "
                "give the path of the model instead"
            )
        return normalize(model), hashlib.sha256(source).hexdigest()
    path = Path(source)
    told = foreign(path)
    if told is not None:
        raise ModelError(told)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    model = _parse(data, str(path))
    digest = hashlib.sha256(data)
    names = sorted({_external_file(t) for t in _stored_tensors(model.graph) if _is_external(t)})
    try:
        # The library refuses locations outside the model's folder.
        onnx.load_external_data_for_model(model, str(path.parent))
        for name in names:
            with (path.parent / name).open("rb") as handle:
                while chunk := handle.read(1 << 20):
                    digest.update(chunk)
    except (OSError, ValueError, RuntimeError, onnx.checker.ValidationError) as error:
        raise ModelError(f"cannot read the external data of {path}: {error}") from error
    return normalize(model), digest.hexdigest()


def normalize(model: ModelProto) -> ModelProto:
    """Bring a model into normal form, in place.

    An initializer that is also listed as an input is a default value that a caller may override. No
    caller of a mesh can, and the listing would stop every fusion of that weight, so it becomes a
    constant. Raises ModelError for a model without outputs or with inputs that are no tensors.
    """
    graph = model.graph
    if not graph.output:
        raise ModelError("the model has no outputs")
    constants = {t.name for t in graph.initializer} | {
        t.values.name for t in graph.sparse_initializer
    }
    inputs = [value for value in graph.input if value.name not in constants]
    del graph.input[:]
    graph.input.extend(inputs)
    for value in inputs:
        if not value.type.HasField("tensor_type"):
            kind = value.type.WhichOneof("value") or "untyped value"
            raise ModelError(f"input {value.name!r} is a {kind}: only tensors cross the mesh")
    del model.training_info[:]
    # Before version 4 of the format, every initializer had to be an input too.
    model.ir_version = max(model.ir_version, 4)
    return model


def weight_bytes(model: ModelProto) -> int:
    """Bytes of all weights of a model. They decide whether the message can be serialized."""
    return sum(tensor_bytes(tensor) for tensor in _stored_tensors(model.graph))


def tensor_bytes(tensor: TensorProto) -> int:
    """Bytes of one weight as stored. Typed fields count with their width in the message."""
    if _is_external(tensor):
        return external_place(tensor)[2]
    if tensor.HasField("raw_data"):
        return len(tensor.raw_data)
    fields = 4 * (len(tensor.float_data) + len(tensor.int32_data))
    wide = len(tensor.int64_data) + len(tensor.double_data) + len(tensor.uint64_data)
    return fields + 8 * wide


def _stored_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """All initializers and tensor attributes of a graph and its subgraphs."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            for subgraph in subgraphs(attribute):
                yield from _stored_tensors(subgraph)


def subgraphs(attribute: AttributeProto) -> list[GraphProto]:
    """The graphs that an attribute holds, such as the branches of an If or the body of a Loop."""
    if attribute.type == AttributeProto.GRAPH:
        return [attribute.g]
    return list(attribute.graphs)


def _is_external(tensor: TensorProto) -> bool:
    """Whether the tensor's bytes lie outside the message."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def external_place(tensor: TensorProto) -> tuple[str, int, int]:
    """File, offset and length of the bytes of an external tensor."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    try:
        length = entries.get("length") or helper.tensor_dtype_to_np_dtype(
            tensor.data_type
        ).itemsize * math.prod(tensor.dims)
        return entries["location"], int(entries.get("offset", 0)), int(length)
    except (KeyError, ValueError) as error:
        raise ModelError(f"weight {tensor.name!r} does not say where its bytes are") from error


def _external_file(tensor: TensorProto) -> str:
    """The file, relative to the model, that holds an external tensor."""
    return next((str(e.value) for e in tensor.external_data if e.key == "location"), "")


def _parse(data: bytes, title: str) -> ModelProto:
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's own error type, which differs between backends
        raise ModelError(f"{title} is not an ONNX model: {error}") from error
    if not model.HasField("graph") or not model.opset_import:
        raise ModelError(f"{title} is not an ONNX model: it has no graph or no operator set")
    return model
