"""The gateway around its node: its doors open once the node is ready, and close before it goes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from nodes.gateway.access.callers import AnyCallers, ListedCallers
from nodes.gateway.access.tls import ServerTls
from nodes.gateway.added import GatewayContext, added
from nodes.gateway.call import Callers
from nodes.gateway.door import Door
from nodes.gateway.hand import BytesInHand
from nodes.gateway.http.app import App
from nodes.gateway.http.server import HttpServer
from nodes.gateway.inference import Inference
from nodes.gateway.models import Models
from nodes.gateway.page.app import PageApp
from nodes.gateway.settings import DRAIN_TIMEOUT, GatewayOptions
from nodes.gateway.shared_memory import Regions
from nodes.life.node import Node
from swarm.errors import SwarmError

log = logging.getLogger("swarm.gateway")

HTTP, GRPC = "http", "grpc"


class Front:
    """`run(node, stop)`: the node's life, with the doors. Its node's status shows `status()`."""

    def __init__(self, options: GatewayOptions) -> None:
        self._options = options
        self._doors: dict[str, Door] = {}
        self._inference: Inference | None = None
        self._is_closed = False

    def status(self) -> dict[str, Any]:
        """Fields of a status document, of doors that are open."""
        if self._inference is None:
            return {}
        doors = {
            name: {"address": self._address(name, door), **door.figures.status()}
            for name, door in self._doors.items()
            if door.port
        }
        refused = self._inference.refused + self._inference.hand.refused
        return {"gateway": {"doors": doors, "refused": refused}}

    def _address(self, name: str, door: Door) -> str:
        options = self._options
        place = options.http_place if name == HTTP else options.grpc_place
        assert place is not None
        secure = bool(options.cert)
        if name == HTTP:
            return f"http{'s' if secure else ''}://{place.at(door.port)}"
        return place.at(door.port)

    async def run(self, node: Node, stop: asyncio.Event) -> None:
        """Raises `SwarmError` for doors that cannot open, and as `Node.run`."""
        tls = self._tls()
        self._make_doors(node, tls)
        left = asyncio.Event()  # by all clients: the node may leave too
        async with asyncio.TaskGroup() as group:
            beside: list[asyncio.Task[Any]] = []

            def own(work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
                beside.append(group.create_task(work, name=name))
                return beside[-1]

            life = group.create_task(node.run(left), name="node")
            stopped = own(stop.wait(), "stop")
            ready = own(node.became_ready.wait(), "ready")
            try:
                await _first_of(life, stopped, ready)
                if ready.done() and not life.done():
                    for door in self._doors.values():
                        await door.start()
                    if tls is not None:
                        own(tls.follow(), "gateway's certificate")
                    await _first_of(life, stopped)
                    await self._close(self._options.goes_on_for)
            finally:
                for task in beside:
                    task.cancel()
                await self._close(0.0)
                left.set()

    def _tls(self) -> ServerTls | None:
        """Raises `InvalidArgument`."""
        options = self._options
        if not options.cert:
            return None
        return ServerTls(options.cert, options.key, options.client_ca)

    def _make_doors(self, node: Node, tls: ServerTls | None) -> None:
        options = self._options
        models = Models(node.mesh)
        refused = _nobody_told if node.audit is None else node.audit.refused
        callers: Callers = AnyCallers()
        if options.callers:
            callers = ListedCallers(options.callers, refused)
        inference = Inference(
            node.answerer.answer,
            options.most_in_flight,
            BytesInHand(options.bodies),
            refused,
        )
        self._inference = inference
        regions = Regions() if options.allow_client_shm else None
        if options.http:
            context = None if tls is None else tls.context
            behind = GatewayContext(node.mesh, models, callers, options, refused)
            apps = {each.below: each.app(behind) for each in added()}
            apps["v2"] = App(inference, models, callers, options, regions)
            apps[""] = PageApp(inference, models, callers, options)
            self._doors[HTTP] = HttpServer(apps, options, inference.hand, tls=context)
        if options.grpc:
            from nodes.gateway.grpc.server import GrpcServer  # 15 MB, where it is asked for

            credentials = None if tls is None else tls.for_grpc()
            self._doors[GRPC] = GrpcServer(
                inference, models, callers, options, regions=regions, credentials=credentials
            )

    async def _close(self, settle: float) -> None:
        """Let balancers see for `settle` seconds that this gateway is not ready, then answer what
        is in flight and end all connections. Closed doors stay closed."""
        doors = [door for door in self._doors.values() if door.port and not self._is_closed]
        self._is_closed = True
        for door in doors:
            door.begin_drain()
        if doors and settle:
            await asyncio.sleep(settle)
        await asyncio.gather(*(door.drain(DRAIN_TIMEOUT) for door in doors))


def _nobody_told(agent: str, error: SwarmError, peer: str) -> None:
    """Refusals are not recorded."""


async def _first_of(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
