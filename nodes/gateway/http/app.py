"""The paths of the protocol: who asks is known, a handler answers, an error becomes its code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from nodes.gateway import model_documents, statuses
from nodes.gateway.call import Caller, Callers, Regions
from nodes.gateway.door import Figures
from nodes.gateway.http.connection import CONNECTION, Bounds, Connection
from nodes.gateway.inference import Inference
from nodes.gateway.models import Models
from nodes.gateway.statuses import NoSuchPath
from nodes.gateway_settings import GatewayOptions
from swarm.errors import Internal, SwarmError

log = logging.getLogger("swarm.gateway")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Page = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")


@dataclass(slots=True)
class Asked:
    """One HTTP request. path: its parts, without `v2`. body: decompressed."""

    method: str
    path: list[str]
    headers: dict[str, str]
    caller: Caller
    receive: Receive


@dataclass(slots=True)
class Answered:
    """What goes back. parts: pieces of the body."""

    code: int = 200
    parts: list[bytes | memoryview] = field(default_factory=list)
    headers: Headers = field(default_factory=lambda: [JSON])


def json_answer(document: Any, code: int = 200) -> Answered:
    """A document as the answer."""
    return Answered(code, [orjson.dumps(document)])


class App:
    """The ASGI application. is_draining: whether the gateway ends."""

    def __init__(
        self,
        inference: Inference,
        models: Models,
        callers: Callers,
        options: GatewayOptions,
        regions: Regions | None,
        page: Page | None,
        bounds: Bounds,
        figures: Figures,
    ) -> None:
        self._inference = inference
        self._models = models
        self._callers = callers
        self._options = options
        self._regions = regions
        self._page = page
        self._bounds = bounds
        self._figures = figures
        self.is_draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: Connection = scope["state"][CONNECTION]
        path = scope["path"].strip("/").split("/")
        if path[0] != "v2" and self._page is not None:
            await self._page(scope, receive, send)
            return
        connection.running = asyncio.current_task()
        self._figures.in_flight += 1
        try:
            answered = await self._answered(scope, path, receive)
        except asyncio.CancelledError:
            if connection.is_lost:
                return  # nobody waits for the answer
            raise
        finally:
            self._figures.in_flight -= 1
        await self._send(answered, send)

    async def _answered(self, scope: Scope, path: list[str], receive: Receive) -> Answered:
        try:
            return await self._route(scope, path, receive)
        except SwarmError as error:
            return self._refused(error)
        except Exception:
            log.exception("a request to %s failed", scope["path"])
            return self._refused(Internal("a fault of the gateway, which its log describes"))

    async def _route(self, scope: Scope, path: list[str], receive: Receive) -> Answered:
        method = scope["method"]
        if path[:2] == ["v2", "health"]:
            return self._health(path)
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        certificate = scope["state"][CONNECTION].certificate
        caller = self._callers.of(headers, (scope["client"] or ("", 0))[0], certificate)
        asked = Asked(method, path[1:], headers, caller, receive)
        match asked.path:
            case []:
                return json_answer(
                    model_documents.server_metadata("swarm", self._regions is not None)
                )
            case ["models", name]:
                info = await self._models.describe(name)
                versions = await self._models.versions(name)
                return json_answer(model_documents.model_metadata(info, versions))
        raise NoSuchPath(f"there is nothing at {scope['path']!r:.200}")

    def _health(self, path: list[str]) -> Answered:
        if path[2:] == ["live"]:
            return Answered()
        if path[2:] == ["ready"]:
            ready = not self.is_draining and self._models.is_connected()
            return Answered(200 if ready else 503)
        raise NoSuchPath("there are v2/health/live and v2/health/ready")

    def _refused(self, error: SwarmError) -> Answered:
        answered = json_answer({"error": str(error)}, statuses.http_code(error))
        if after := statuses.retry_after(error):
            answered.headers.append((b"retry-after", b"%d" % after))
        return answered

    async def _send(self, answered: Answered, send: Send) -> None:
        self._figures.by_code[str(answered.code)] += 1
        body = b"".join(answered.parts)
        headers = [*answered.headers, (b"content-length", b"%d" % len(body))]
        if self.is_draining:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": answered.code, "headers": headers})
        await send({"type": "http.response.body", "body": body})
