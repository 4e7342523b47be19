"""What clients of a gateway send: messages of gRPC, as bytes and by their fields; HTTP's bodies."""

from __future__ import annotations

import json
from contextlib import ExitStack

import numpy as np
from google.protobuf.json_format import MessageToJson, Parse, ParseError

from bench.hostile.target import Case, Target, json_objects
from nodes.gateway.call import Caller
from nodes.gateway.grpc.calls import readable
from nodes.gateway.grpc.decode import infer_call
from nodes.gateway.grpc.messages import ModelInferRequest, message, reader
from nodes.gateway.http.infer import HEADER_LENGTH, decoded
from nodes.gateway.shared_memory import Regions
from swarm.errors import DecodeError

# A field of a message is an object of up to 200 bytes in protobuf's memory, and has two bytes at
# least on the wire; a map's entry has more.
OBJECT_BYTES = 100


def _requests() -> tuple[bytes, ...]:
    """Raw bytes, typed contents, shared memory, and each parameter that is read."""
    raw = ModelInferRequest(model_name="m", model_version="1", id="7")
    raw.parameters["timeout"].int64_param = 5000
    raw.parameters["session"].string_param = "arm"
    raw.parameters["priority"].uint64_param = 1
    raw.inputs.add(name="x", datatype="FP32", shape=(2, 3))
    raw.raw_input_contents.append(np.arange(6, dtype=np.float32).tobytes())
    raw.outputs.add(name="y").parameters["classification"].int64_param = 0
    typed = ModelInferRequest(model_name="m")
    for name, datatype, field in (
        ("x", "FP32", "fp32_contents"),
        ("y", "INT8", "int_contents"),
        ("z", "BOOL", "bool_contents"),
        ("u", "UINT64", "uint64_contents"),
    ):
        tensor = typed.inputs.add(name=name, datatype=datatype, shape=(3,))
        getattr(tensor.contents, field).extend([1, 0, 1])
    shared = ModelInferRequest(model_name="m")
    tensor = shared.inputs.add(name="x", datatype="INT64", shape=(1 << 20, 1 << 20))
    tensor.parameters["shared_memory_region"].string_param = "r"
    tensor.parameters["shared_memory_offset"].int64_param = 64
    tensor.parameters["shared_memory_byte_size"].int64_param = 1 << 43
    return tuple(each.SerializeToString() for each in (raw, typed, shared))


def _open_infer(stack: ExitStack) -> Case:
    read, regions = reader(ModelInferRequest), Regions()

    def parse(data: bytes) -> None:
        infer_call(readable(read(data)), Caller(), {}, 1.0, regions)

    return Case(_requests(), parse, declared=lambda m: OBJECT_BYTES * len(m))


def _open_fields(stack: ExitStack) -> Case:
    """Messages that can be read, whose fields contradict each other."""
    regions = Regions()

    def parse(data: bytes) -> None:
        try:
            request = Parse(data, ModelInferRequest(), max_recursion_depth=50)
        except (ParseError, UnicodeDecodeError, RecursionError) as error:
            raise DecodeError(f"none of its messages: {error}") from None
        infer_call(request, Caller(), {}, 1.0, regions)

    seeds = [MessageToJson(ModelInferRequest.FromString(each)).encode() for each in _requests()]
    return Case(tuple(seeds), parse, declared=json_objects)


def _open_http(stack: ExitStack) -> Case:
    """Tensors as JSON, and in memory of the client's."""
    regions = Regions()
    place = {"shared_memory_region": "r", "shared_memory_offset": 8, "shared_memory_byte_size": 8}
    tensors = [
        {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [[1.5, 2], [3, -4e3]]},
        {"name": "y", "datatype": "INT64", "shape": [1], "parameters": place},
    ]
    outputs = [{"name": "z", "parameters": {"binary_data": False, "classification": 0}}]
    words = {"timeout": 5000, "priority": 1, "binary_data_output": True}
    document = {"id": "7", "inputs": tensors[:1], "outputs": outputs, "parameters": words}

    def parse(data: bytes) -> None:
        decoded("m", "", data, {}, Caller(), regions)

    seeds = (document, {**document, "inputs": tensors})
    return Case(tuple(json.dumps(each).encode() for each in seeds), parse, declared=json_objects)


def _open_binary(stack: ExitStack) -> Case:
    """Tensors behind the JSON. The header with the JSON's length stays as it was."""
    tensors = [
        {
            "name": name,
            "datatype": "FP32",
            "shape": [2, 2],
            "parameters": {"binary_data_size": 16},
        }
        for name in ("x", "y")
    ]
    head = json.dumps({"inputs": tensors}).encode()
    headers = {HEADER_LENGTH: str(len(head))}

    def parse(data: bytes) -> None:
        decoded("m", "", data, headers, Caller(), None)

    return Case((head + bytes(32),), parse, declared=json_objects)


def _open_regions(stack: ExitStack) -> Case:
    """Names, keys and places as a client registers them."""
    kind = message("inference.SystemSharedMemoryRegisterRequest")
    read, regions = reader(kind), Regions()
    seed = kind(name="r", key="/absent_camera", offset=64, byte_size=4096)

    def parse(data: bytes) -> None:
        request = readable(read(data))
        regions.register(request.name, request.key, request.offset, request.byte_size)

    return Case((seed.SerializeToString(),), parse)


TARGETS = (
    Target("grpc.infer", "bytes", _open_infer),
    Target("grpc.fields", "json", _open_fields),
    Target("http.infer", "json", _open_http),
    Target("http.binary", "bytes", _open_binary, share=0.5),
    Target("grpc.memory", "bytes", _open_regions, share=0.3),
)
