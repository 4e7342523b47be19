"""The messages and methods of the services, in a pool of descriptors of their own.

The names of tritonclient's stubs are the same ones. A process may hold both, since neither is in
the pool of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any, NamedTuple

import grpc
from google.protobuf import descriptor_pb2, message_factory, text_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection_pb2

from nodes.gateway.grpc import protos

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
REFLECTION = tuple(f"grpc.reflection.{each}.ServerReflection" for each in ("v1", "v1alpha"))


def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    described = files(protos).joinpath("descriptors.binpb").read_bytes()
    older = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(older)
    text = text_format.MessageToString(older).replace("v1alpha", "v1")  # has the same messages
    newer = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    for file in (*descriptor_pb2.FileDescriptorSet.FromString(described).file, older, newer):
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _pool()


def message(name: str) -> Any:
    """The class of a message by its full name. Raises `KeyError`."""
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


ModelInferRequest = message("inference.ModelInferRequest")
ModelInferResponse = message("inference.ModelInferResponse")
ModelStreamInferResponse = message("inference.ModelStreamInferResponse")


class Unreadable(NamedTuple):
    """Stands for a request whose bytes are no message of its kind. reason: of the parser."""

    reason: str


def reader(kind: Any) -> Callable[[bytes], Any]:
    """Reads messages of a class. The library ends a call whose bytes cannot be read without a
    word; so a method gets `Unreadable`, and says it."""

    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except DecodeError as error:
            return Unreadable(str(error))

    return read


def method_handler(service: str, method: str, behaviour: Any) -> Any:
    """A handler of gRPC for one method of a service. behaviour: a coroutine of (request, context),
    of (requests, context) where requests come as a stream."""
    described = POOL.FindServiceByName(service).methods_by_name[method]
    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make = kinds[described.client_streaming, described.server_streaming]
    request = message(described.input_type.full_name)
    response = message(described.output_type.full_name)
    return make(behaviour, reader(request), response.SerializeToString)
