"""A gRPC server of the gateway whose mesh is a function: the model `simple` adds and subtracts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from gateway_fakes import Anybody, OneModel

from nodes.gateway.grpc.server import GrpcBounds, GrpcServer
from nodes.gateway.hand import BytesInHand
from nodes.gateway.inference import Inference
from nodes.gateway.models import Listed
from nodes.gateway.settings import GatewayOptions
from nodes.gateway.shared_memory import Regions
from swarm.errors import Status, SwarmError
from swarm.model import ModelInfo, Spec, Stage, unknown_model
from swarm.wire.hops import Hop
from swarm.wire.messages import Request, Result

BOUNDS = GrpcBounds()
SHAPE = (1, 16)
INPUTS = tuple(Spec(name, "INT32", SHAPE) for name in ("INPUT0", "INPUT1"))
OUTPUTS = tuple(Spec(name, "INT32", SHAPE) for name in ("OUTPUT0", "OUTPUT1"))
SIMPLE = ModelInfo("simple", "1", INPUTS, OUTPUTS, (Stage(1, INPUTS, OUTPUTS, 0.1),))


def numbers(start: int = 0) -> dict[str, np.ndarray]:
    """Inputs of `simple`: counted from `start`, and ones."""
    counted = np.arange(start, start + 16, dtype=np.int32).reshape(SHAPE)
    return {"INPUT0": counted, "INPUT1": np.ones(SHAPE, np.int32)}


class SimpleMesh:
    """Answers `simple`, and keeps the requests. held: while it is not set, requests wait. failing:
    the error that each request gets. cancelled: ids of requests that were given up."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.cancelled: list[str] = []
        self.held = asyncio.Event()
        self.held.set()
        self.failing: SwarmError | None = None
        self.delay: Callable[[Request], Awaitable[Any]] | None = None

    async def answer(self, model: str, request: Request) -> Result:
        self.requests.append(request)
        try:
            await self.held.wait()
            if self.delay is not None:
                await self.delay(request)
            return self._result(model, request)
        except asyncio.CancelledError:
            self.cancelled.append(request.id)
            raise

    def _result(self, model: str, request: Request) -> Result:
        error = self.failing
        try:
            if model != "simple":
                raise unknown_model(model, request.version)
            if error is not None:
                raise error
            SIMPLE.check(request.inputs)
            SIMPLE.check_outputs(request.outputs)
        except SwarmError as failure:
            after = getattr(failure, "retry_after", 0.0)
            return Result(
                request.id, model, status=failure.status, message=str(failure), retry_after=after
            )
        first, second = request.inputs["INPUT0"], request.inputs["INPUT1"]
        made = {"OUTPUT0": first + second, "OUTPUT1": first - second}
        outputs = {name: made[name] for name in request.outputs or made}
        hop = Hop(1, "node-1", 10, 20, weights=7)
        return Result(request.id, model, "1", Status.OK, outputs, hops=(hop,))


class Gateway:
    """A server, and what stands around it. url: where it listens."""

    def __init__(self, server: GrpcServer, mesh: SimpleMesh, models: Any, callers: Any) -> None:
        self.server, self.mesh, self.models, self.callers = server, mesh, models, callers

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self.server.port}"


@asynccontextmanager
async def gateway(
    regions: Regions | None = None,
    bounds: GrpcBounds = BOUNDS,
    most_in_flight: int = 256,
    **settings: Any,
) -> AsyncIterator[Gateway]:
    """A server at a free port; behind the block it has ended. settings: of `GatewayOptions`."""
    mesh, callers = SimpleMesh(), Anybody()
    models = OneModel(SIMPLE, Listed("simple", "2", False, "no node serves it"))
    options = GatewayOptions(grpc="127.0.0.1:0", **settings)
    hand = BytesInHand(options.bodies)
    inference = Inference(mesh.answer, most_in_flight, hand)
    server = GrpcServer(inference, models, callers, options, regions=regions, bounds=bounds)
    await server.start()
    try:
        yield Gateway(server, mesh, models, callers)
    finally:
        mesh.held.set()
        await server.drain(2.0)
