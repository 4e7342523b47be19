"""The paths of the protocol: who asks is known, a handler answers, an error becomes its code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson

from nodes.gateway import model_documents as documents
from nodes.gateway import parameters as words
from nodes.gateway import statuses
from nodes.gateway.call import Caller, Callers, Regions
from nodes.gateway.door import Figures
from nodes.gateway.http import compression
from nodes.gateway.http.answer import encoded
from nodes.gateway.http.body import Holder, whole_body
from nodes.gateway.http.connection import CONNECTION, HttpBounds, HttpConnection
from nodes.gateway.http.infer import HEADER_LENGTH, decoded
from nodes.gateway.inference import Inference
from nodes.gateway.models import Models
from nodes.gateway.settings import GatewayOptions
from nodes.gateway.statuses import NoSuchMethod, NoSuchPath, NotOffered, TooSlow
from swarm.errors import Internal, InvalidArgument, SwarmError, Unauthenticated
from swarm.wire.tensors import LIMITS, MessageLimits, Part

log = logging.getLogger("swarm.gateway")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Page = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
BINARY = (b"content-type", b"application/octet-stream")
SMALL = 64 << 10  # bytes of a body that holds no tensors
# What Triton has and the mesh has not, by the path's parts.
LEFT_OUT = {
    "cudasharedmemory": "shared memory of GPUs is not offered: send the tensors",
    "logging": "settings of logs are not offered",
    "trace": "trace settings are not offered: the header traceparent goes through",
    "load": "models are not loaded by clients: `swarm model push` and `promote` do that",
    "unload": "models are not unloaded by clients: `swarm model rollback` and `promote` do that",
    "generate": "generate is not offered: `infer` is",
    "generate_stream": "generate_stream is not offered: `infer` is",
}


@dataclass(slots=True)
class HttpRequest:
    """One HTTP request. path: its parts behind `v2`."""

    method: str
    path: list[str]
    headers: dict[str, str]
    caller: Caller
    receive: Receive
    holder: Holder


@dataclass(slots=True)
class Answered:
    """What goes back. parts: pieces of the body."""

    code: int = 200
    parts: list[Part] = field(default_factory=list)
    headers: Headers = field(default_factory=lambda: [JSON])


def _json(document: Any, code: int = 200) -> Answered:
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
        apps: Mapping[str, Page],
        bounds: HttpBounds,
        figures: Figures,
    ) -> None:
        self._inference = inference
        self._models = models
        self._callers = callers
        self._options = options
        self._limits = MessageLimits(bytes=min(options.body, LIMITS.bytes))
        self._regions = regions
        self._page = page
        self._apps = apps
        self._bounds = bounds
        self._figures = figures
        self.is_draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: HttpConnection = scope["state"][CONNECTION]
        path = scope["path"].strip("/").split("/")
        connection.running = asyncio.current_task()
        self._figures.in_flight += 1
        try:
            app = None if path[0] == "v2" else self._apps.get(path[0], self._page)
            if app is not None:
                await app(scope, receive, partial(self._pass_on, send))
                return
            answered = await self._answered(scope, path, receive)
        except asyncio.CancelledError:
            if connection.is_lost:
                return  # nobody waits for the answer
            raise
        finally:
            self._figures.in_flight -= 1
            connection.running = None
            connection.release()
        await self._send(answered, send)

    async def _answered(self, scope: Scope, path: list[str], receive: Receive) -> Answered:
        try:
            return await self._route(scope, path, receive)
        except SwarmError as error:
            return self._refused(error)
        except Exception:
            log.exception("a request to %.200s failed", scope["path"])
            return self._refused(Internal("a fault of the gateway, which its log describes"))

    async def _route(self, scope: Scope, path: list[str], receive: Receive) -> Answered:
        if path[:2] == ["v2", "health"]:
            return self._health(path)
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        connection, client = scope["state"][CONNECTION], scope["client"] or ("", 0)
        asks = path[-1] == "infer"  # of what is only told, a quota counts nothing
        caller = self._callers.of(headers, client[0], connection.certificate, takes=asks)
        asked = HttpRequest(scope["method"], path[1:], headers, caller, receive, connection)
        match asked.path:
            case ["models", name, "infer"]:
                return await self._infer(asked, name, "")
            case ["models", name, "versions", version, "infer"]:
                return await self._infer(asked, name, version)
            case [] if path == ["v2"]:
                self._only(asked, "GET", "HEAD")
                shm = self._regions is not None
                return _json(documents.server_metadata(self._options.server_name, shm))
            case ["models", "stats"]:
                self._only(asked, "GET", "HEAD")
                return _json({"model_stats": self._inference.statistics.documents()})
            case ["models", name, "versions", version, *rest]:
                return await self._model(asked, name, version, rest)
            case ["models", name, *rest]:
                return await self._model(asked, name, "", rest)
            case ["repository", "index"]:
                return await self._index(asked)
            case ["systemsharedmemory", "region", name, act]:
                return await self._shared_memory(asked, name, act)
            case ["systemsharedmemory", act]:
                return await self._shared_memory(asked, "", act)
            case ["cudasharedmemory", *_, "status"]:
                self._only(asked, "GET", "HEAD")
                return _json([])  # none is ever registered
            case ["cudasharedmemory", *_, "unregister"]:
                self._only(asked, "POST")
                return Answered()
        self._refuse_left_out(asked)
        raise NoSuchPath(f"there is nothing at {scope['path']!r:.200}")

    # --- what there is ----------------------------------------------------------------------

    def _health(self, path: list[str]) -> Answered:
        if path[2:] == ["live"]:
            return _json({"live": True})
        if path[2:] == ["ready"]:
            ready = not self.is_draining and self._models.is_connected()
            return _json({"ready": ready}, 200 if ready else 503)
        raise NoSuchPath("there are v2/health/live and v2/health/ready")

    async def _model(
        self, asked: HttpRequest, name: str, version: str, rest: list[str]
    ) -> Answered:
        if rest not in ([], ["ready"], ["config"], ["stats"]):
            self._refuse_left_out(asked)
            raise NoSuchPath(f"model {name!r:.80} has no {'/'.join(rest)!r:.80}")
        self._only(asked, "GET", "HEAD")
        if rest == ["ready"]:
            ready = await self._models.is_ready(name, version)
            return _json({"name": name, "ready": ready}, 200 if ready else 404)
        info = await self._models.describe(name, version)
        if rest == ["config"]:
            return _json(documents.model_config(info))
        if rest == ["stats"]:
            found = self._inference.statistics.documents(name, version)
            return _json({"model_stats": found or [documents.no_statistics(info)]})
        return _json(documents.model_metadata(info, await self._models.versions(name)))

    async def _index(self, asked: HttpRequest) -> Answered:
        self._only(asked, "POST", "GET")
        document = await self._small(asked)
        listed = await self._models.listed()
        return _json(documents.repository_index(listed, document.get("ready") is True))

    async def _shared_memory(self, asked: HttpRequest, name: str, act: str) -> Answered:
        if self._regions is None:
            raise words.no_shared_memory()
        if act == "status":
            self._only(asked, "GET", "HEAD")
            return _json(documents.regions(self._regions.registered(name)))
        self._only(asked, "POST")
        if act == "unregister":
            self._regions.unregister(name)
            return Answered()
        if act != "register" or not name:
            raise NoSuchPath("a region is registered, unregistered, or asked for its status")
        document = await self._small(asked)
        key = words.word(document.get("key"), "key")
        offset = words.count(document.get("offset", 0), "offset")
        self._regions.register(
            name, key, offset, words.count(document.get("byte_size"), "byte_size")
        )
        return Answered()

    def _only(self, asked: HttpRequest, *methods: str) -> None:
        if asked.method not in methods:
            raise NoSuchMethod(f"{asked.method} is not for this path: {methods[0]} is")

    def _refuse_left_out(self, asked: HttpRequest) -> None:
        for part in asked.path[:1] + asked.path[2:]:
            if part in LEFT_OUT:
                raise NotOffered(LEFT_OUT[part])

    # --- an inference -----------------------------------------------------------------------

    async def _infer(self, asked: HttpRequest, model: str, version: str) -> Answered:
        self._only(asked, "POST")
        body = await self._body(asked, self._limits.bytes)
        try:
            request = decoded(
                model, version, body, asked.headers, asked.caller, self._regions, self._limits
            )
        except InvalidArgument:
            await self._models.describe(model, version)  # no request is right for an unknown model
            raise
        answer = await self._inference.run(request.call)
        head, tensors = encoded(answer, request.binary, self._regions)
        answered = Answered(parts=[head, *tensors])
        if tensors:
            length = (HEADER_LENGTH.encode(), b"%d" % len(head))
            answered.headers = [BINARY, length]
        if self._options.compress:
            await self._compress(answered, asked.headers.get("accept-encoding", ""))
        return answered

    async def _compress(self, answered: Answered, accept: str) -> None:
        encoding = compression.accepted(accept)
        body = b"".join(answered.parts)
        if encoding and len(body) >= compression.COMPRESS_FROM:
            answered.parts = [await compression.packed(body, encoding)]
            answered.headers = [*answered.headers, (b"content-encoding", encoding.encode())]

    async def _small(self, asked: HttpRequest) -> dict[str, Any]:
        """The object in a body, {} for no body. Raises `InvalidArgument`."""
        body = await self._body(asked, SMALL)
        try:
            document = orjson.loads(body or b"{}")
        except ValueError as error:
            raise InvalidArgument(f"the body is no JSON: {error}") from None
        if not isinstance(document, dict):
            raise InvalidArgument("the body is an object of JSON")
        return document

    async def _body(self, asked: HttpRequest, limit: int) -> bytes:
        """Raises as `whole_body`."""
        seconds = self._bounds.body_time
        return await whole_body(asked.headers, asked.receive, limit, seconds, asked.holder)

    # --- what goes back ---------------------------------------------------------------------

    def _refused(self, error: SwarmError) -> Answered:
        full = 503 if self._options.full_is_503 else 429
        answered = _json({"error": str(error)}, statuses.http_code(error, full))
        answered.headers += statuses.retry_after(error)
        if isinstance(error, Unauthenticated):
            answered.headers.append((b"www-authenticate", b"Bearer"))
        if isinstance(error, TooSlow):
            answered.headers.append((b"connection", b"close"))
        return answered

    async def _pass_on(self, send: Send, message: MutableMapping[str, Any]) -> None:
        """A message of another protocol's answer: its code counts, and a drain is told."""
        if message["type"] == "http.response.start":
            self._figures.by_code[str(message["status"])] += 1
            if self.is_draining:
                message["headers"].append((b"connection", b"close"))
        await send(message)

    async def _send(self, answered: Answered, send: Send) -> None:
        self._figures.by_code[str(answered.code)] += 1
        parts = answered.parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        headers = [*answered.headers, (b"content-length", b"%d" % len(body))]
        if self.is_draining:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": answered.code, "headers": headers})
        await send({"type": "http.response.body", "body": body})
