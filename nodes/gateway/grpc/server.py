"""The gRPC server: it listens beside a node, in the node's event loop, and drains with it."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import aio as reflection

from nodes.gateway.call import Callers
from nodes.gateway.door import Figures
from nodes.gateway.grpc.calls import Calls
from nodes.gateway.grpc.health import GrpcHealth
from nodes.gateway.grpc.inferring import Inferring
from nodes.gateway.grpc.messages import HEALTH, INFERENCE, POOL, REFLECTION, method_handler
from nodes.gateway.grpc.models import ModelMethods, not_offered
from nodes.gateway.inference import Inference
from nodes.gateway.models import Models
from nodes.gateway.settings import GatewayOptions
from nodes.gateway.shared_memory import Regions
from nodes.place import LOOPBACK, ListenPlace
from swarm.errors import InvalidArgument

log = logging.getLogger("swarm.gateway")

# Milliseconds. A client may ping a quiet connection each 5 s (the default, 5 min, ends connections
# of clients that keep theirs alive through a balancer); a client that went without a word is
# found after 80 s.
PINGS_OF_CLIENTS = 5_000
OWN_PINGS, ANSWER_WITHIN = 60_000, 20_000
HANDSHAKE = 10_000  # milliseconds: TLS, and HTTP/2's first frames
NEVER = (1 << 31) - 1  # milliseconds, as the library has it
MOST_METADATA = 16 << 10  # bytes


@dataclass(frozen=True, slots=True)
class GrpcBounds:
    """answer: bytes. connections: at a time. streams: calls at a time on one connection; a client's
    library keeps the next ones back. in_flight: requests of one `ModelStreamInfer` at a time."""

    answer: int = 68 << 20  # the mesh gives tensors of 64 MiB
    connections: int = 768
    streams: int = 1024
    in_flight: int = 64


class GrpcServer:
    """A `Door`: `await start()`, then `await drain(timeout)` once.

    regions: shared memory of clients, None where it is not allowed. credentials: of TLS, None for
    plain connections.
    """

    def __init__(
        self,
        inference: Inference,
        models: Models,
        callers: Callers,
        options: GatewayOptions,
        *,
        regions: Regions | None = None,
        credentials: grpc.ServerCredentials | None = None,
        bounds: GrpcBounds = GrpcBounds(),
    ) -> None:
        self.figures = Figures(knows_connections=False)
        self._place = options.grpc_place or ListenPlace(LOOPBACK, 0)
        self._options = options
        self._bounds = bounds
        self._credentials = credentials
        self._calls = Calls(callers, self.figures)
        self._health = GrpcHealth(models)
        self._models = ModelMethods(models, inference.statistics, options.server_name, regions)
        self._inferring = Inferring(inference, regions, bounds.in_flight)
        self._server: grpc.aio.Server | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """Where it listens, once it has started."""
        return self._port

    async def start(self) -> None:
        """Listen. Raises `InvalidArgument` where that cannot be."""
        server = grpc.aio.server(options=self._channel_options())
        server.add_generic_rpc_handlers(self._handlers())
        where = self._place.at(self._place.port)
        try:
            if self._credentials is None:
                self._port = server.add_insecure_port(where)
            else:
                self._port = server.add_secure_port(where, self._credentials)
        except RuntimeError:
            text = f"--grpc: cannot listen at {where}: port 0 takes a free one"
            raise InvalidArgument(text) from None
        self._server = server
        await server.start()
        log.info("gRPC clients may ask at %s", self._place.at(self._port))

    def begin_drain(self) -> None:
        """Say so: `ServerReady` and the health service deny from now on. Calls are still answered,
        until `drain`."""
        self._health.drain()

    async def drain(self, timeout: float) -> None:
        """Send GOAWAY: a client's next call goes over another connection. Answer what is under way
        within `timeout` seconds, cancel the rest, and end. A stream takes no more requests, and
        ends with `UNAVAILABLE` once it has answered those it took."""
        self.begin_drain()
        self._inferring.drain()
        if self._server is not None:
            await self._server.stop(timeout)

    def _channel_options(self) -> list[tuple[str, int]]:
        bounds = self._bounds
        return [
            ("grpc.max_receive_message_length", self._options.body),
            ("grpc.max_send_message_length", bounds.answer),
            ("grpc.max_concurrent_streams", bounds.streams),
            ("grpc.max_allowed_incoming_connections", bounds.connections),
            ("grpc.max_metadata_size", MOST_METADATA),
            ("grpc.absolute_max_metadata_size", MOST_METADATA),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE),
            ("grpc.http2.settings_timeout", HANDSHAKE),
            ("grpc.http2.min_ping_interval_without_data_ms", PINGS_OF_CLIENTS),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", PINGS_OF_CLIENTS),
            ("grpc.max_connection_age_ms", round(self._options.connection_age * 1e3) or NEVER),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.keepalive_time_ms", OWN_PINGS),
            ("grpc.keepalive_timeout_ms", ANSWER_WITHIN),
            ("grpc.so_reuseport", 0),  # a second server at the port is an error, and not half of it
        ]

    def _handlers(self) -> list[Any]:
        """Of each service, its methods by name."""
        framed, health = self._calls.framed, self._health
        services: dict[str, dict[str, Any]] = {
            INFERENCE: {
                **{name: framed(method) for name, method in self._models.methods().items()},
                "ServerLive": health.live,
                "ServerReady": health.ready,
                "ModelInfer": framed(self._inferring.infer, takes=True),
                "ModelStreamInfer": framed(self._inferring.stream),
            },
            HEALTH: {"Check": health.check, "Watch": health.watch},
        }
        reflecting = grpc.stream_stream_rpc_method_handler(
            reflection.ReflectionServicer([*services, *REFLECTION], POOL).ServerReflectionInfo,
            reflection_pb2.ServerReflectionRequest.FromString,
            reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        handlers = [
            grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": reflecting})
            for name in REFLECTION
        ]
        for service, methods in services.items():
            made = {each: method_handler(service, each, does) for each, does in methods.items()}
            if service == INFERENCE:
                made |= not_offered()
            handlers.append(grpc.method_handlers_generic_handler(service, made))
        return handlers
