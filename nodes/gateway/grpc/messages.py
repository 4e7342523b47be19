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

from nodes.gateway.grpc import protos

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"
REFLECTION_PACKAGE = "grpc.reflection.v1"
REFLECTION = tuple(f"{REFLECTION_PACKAGE}{older}.ServerReflection" for older in ("", "alpha"))
SERVICES = (INFERENCE, HEALTH, *REFLECTION)


def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    described = files(protos).joinpath("descriptors.binpb").read_bytes()
    for file in descriptor_pb2.FileDescriptorSet.FromString(described).file:
        pool.AddSerializedFile(file.SerializeToString())
        if file.package == REFLECTION_PACKAGE:  # the older package has the same messages
            text = text_format.MessageToString(file).replace("reflection_v1", "reflection_v1alpha")
            text = text.replace(REFLECTION_PACKAGE, f"{REFLECTION_PACKAGE}alpha")
            older = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
            pool.AddSerializedFile(older.SerializeToString())
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
