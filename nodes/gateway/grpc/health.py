"""Health: of the Open Inference Protocol, and the standard service that balancers ask.

Not grpcio-health-checking's: with protobuf below 7 its versions tell no further change to the
watchers that stay once another one has left.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from nodes.gateway.grpc.messages import INFERENCE, Unreadable, message
from nodes.gateway.models import Models

KNOWN = ("", INFERENCE)  # services that may be asked for; "" stands for the whole server
LOOKED_EVERY = 0.5  # seconds between two looks for the watchers


class GrpcHealth:
    """The gateway is ready while its node is connected to the mesh and it does not drain."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._draining = asyncio.Event()
        self._status = message("grpc.health.v1.HealthCheckResponse")

    def drain(self) -> None:
        """Not ready from now on."""
        self._draining.set()

    @property
    def is_ready(self) -> bool:
        return not self._draining.is_set() and self._models.is_connected()

    async def live(self, request: Any, context: Any) -> Any:
        """Of `ServerLive`."""
        return message("inference.ServerLiveResponse")(live=True)

    async def ready(self, request: Any, context: Any) -> Any:
        """Of `ServerReady`."""
        return message("inference.ServerReadyResponse")(ready=self.is_ready)

    async def check(self, request: Any, context: Any) -> Any:
        """Of `grpc.health.v1.Health/Check`."""
        if isinstance(request, Unreadable):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is no request of health")
        if request.service not in KNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return self._now()

    async def watch(self, request: Any, context: Any) -> None:
        """Of `grpc.health.v1.Health/Watch`: the state, and each change of it, until the client
        goes away or the server ends."""
        if isinstance(request, Unreadable):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is no request of health")
        if request.service not in KNOWN:
            await context.write(self._status(status="SERVICE_UNKNOWN"))
            await self._draining.wait()
            return
        told = None
        while told is None or not self._draining.is_set():
            now = self._now()
            if now != told:
                await context.write(now)
                told = now
            try:
                async with asyncio.timeout(LOOKED_EVERY):
                    await self._draining.wait()
            except TimeoutError:
                continue
        if told.status != self._now().status:
            await context.write(self._now())

    def _now(self) -> Any:
        return self._status(status="SERVING" if self.is_ready else "NOT_SERVING")
