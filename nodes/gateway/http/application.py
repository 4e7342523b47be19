"""An application behind the HTTP door: who asks is known, a body comes whole and within its bounds,
an answer goes back, an error becomes its code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from nodes.gateway import statuses
from nodes.gateway.call import Caller, Callers
from nodes.gateway.door import Figures, Page, Receive, Scope, Send
from nodes.gateway.http import compression
from nodes.gateway.http.connection import CONNECTION, HttpConnection
from nodes.gateway.settings import GatewayOptions
from nodes.gateway.statuses import FAULT, NoSuchMethod, NoSuchPath, TooLarge, TooSlow
from swarm.errors import Internal, InvalidArgument, SwarmError, Unauthenticated
from swarm.wire.tensors import Part

log = logging.getLogger("swarm.gateway")

Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
NO_HEADERS: Headers = []


class HttpRequest:
    """One HTTP request, and the way back to its client. path: all its parts. headers: names in
    lower case. has_begun: the answer's status has gone out. always: headers of each answer."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, always: Headers) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: list[str] = scope["path"].strip("/").split("/")
        self.headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.connection: HttpConnection = scope["state"][CONNECTION]
        self.peer: str = (scope["client"] or ("", 0))[0]
        self.has_begun = False
        self._receive = receive
        self._send = send
        self._always = always

    def only(self, *methods: str) -> None:
        """Raises `NoSuchMethod` for another one."""
        if self.method not in methods:
            raise NoSuchMethod(f"{self.method} is not for this path: {methods[0]} is")

    def nothing(self) -> NoSuchPath:
        """For a path that nobody answers."""
        return NoSuchPath(f"there is nothing at {self.scope['path']!r:.200}")

    async def body(self, limit: int) -> bytes:
        """The whole body. limit: bytes, unpacked. A body that says its length is refused before it
        comes where there is no room for it. Raises `TooLarge`, `TooSlow`, `ResourceExhausted`, and
        what `compression.unpacked` raises."""
        holder, seconds = self.connection, self.connection.bounds.body_time
        announced = self.headers.get("content-length", "0")
        if not (announced.isascii() and announced.isdigit()) or int(announced[:20]) > limit:
            raise TooLarge(f"a body of {announced:.20} bytes: at most {limit} are taken")
        holder.expect(expected := int(announced))
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(seconds):
                more = True
                while more:
                    message = await self._receive()
                    if message["type"] != "http.request":
                        raise asyncio.CancelledError  # the client is gone
                    pieces.append(message.get("body", b""))
                    size += len(pieces[-1])
                    if size > limit:
                        raise TooLarge(f"a body of more than {limit} bytes")
                    if not expected:
                        holder.hold(len(pieces[-1]))
                    more = message.get("more_body", False)
        except TimeoutError:
            raise TooSlow(f"the body did not come within {seconds:g} s") from None
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        encoding = self.headers.get("content-encoding")
        return await compression.unpacked(body, encoding, limit, holder.hold) if encoding else body

    async def document(self, limit: int) -> dict[str, Any]:
        """The object in a body, {} for no body. Raises `InvalidArgument` too."""
        try:
            document = orjson.loads(await self.body(limit) or b"{}")
        except ValueError as error:
            raise InvalidArgument(f"the body is no JSON in UTF-8: {error}") from None
        if not isinstance(document, dict):
            raise InvalidArgument("the body is an object of JSON")
        return document

    async def json(self, document: Any, code: int = 200, headers: Headers = NO_HEADERS) -> None:
        """Answer with JSON."""
        await self.whole([orjson.dumps(document)], [JSON, *headers], code)

    async def whole(self, parts: Sequence[Part], headers: Headers, code: int = 200) -> None:
        """Answer in one piece. parts: of the body."""
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        await self._start(code, [*headers, (b"content-length", b"%d" % len(body))])
        await self._send({"type": "http.response.body", "body": body})

    async def begin(self, headers: Headers) -> None:
        """Answer in pieces, which follow."""
        await self._start(200, [*headers])

    async def _start(self, code: int, headers: Headers) -> None:
        """The code counts, and a drain is told."""
        figures = self.connection.figures
        figures.by_code[str(code)] += 1
        headers += self._always
        if figures.is_draining:
            headers.append((b"connection", b"close"))
        self.has_begun = True
        await self._send({"type": "http.response.start", "status": code, "headers": headers})

    async def piece(self, body: Part, more: bool = False) -> None:
        """Send a part of the body. more: another one follows."""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


class HttpApplication:
    """An ASGI application. A kind of it defines `answer`. always: headers of each answer."""

    always: Headers = NO_HEADERS

    def __init__(self, callers: Callers, options: GatewayOptions) -> None:
        self._callers = callers
        self._full = 503 if options.full_is_503 else 429

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = HttpRequest(scope, receive, send, self.always)
        try:
            await self.answer(asked)
        except SwarmError as error:
            await self.refuse(asked, error)
        except Exception:
            log.exception("a request to %.200s failed", scope["path"])
            await self.refuse(asked, Internal(FAULT))

    async def answer(self, asked: HttpRequest) -> None:
        """Raises `SwarmError`."""
        raise NotImplementedError

    def caller(self, asked: HttpRequest, takes: bool) -> Caller:
        """Who asks. Raises as `Callers.of`."""
        return self._callers.of(
            asked.headers, asked.peer, asked.connection.certificate, takes=takes
        )

    def told(self, error: SwarmError) -> tuple[int, Any]:
        """Code and document of an error."""
        return statuses.http_code(error, self._full), {"error": str(error)}

    async def refuse(self, asked: HttpRequest, error: SwarmError) -> None:
        """Answer with an error."""
        code, document = self.told(error)
        headers = [] if code == 400 else statuses.retry_after(error)
        if isinstance(error, Unauthenticated):
            headers.append((b"www-authenticate", b"Bearer"))
        if isinstance(error, TooSlow):
            headers.append((b"connection", b"close"))
        await asked.json(document, code, headers)


class Paths:
    """The ASGI application of the door. apps: those behind it, by the first part of their paths;
    "" for all other paths."""

    def __init__(self, apps: Mapping[str, Page], figures: Figures) -> None:
        self._apps = apps
        self._figures = figures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: HttpConnection = scope["state"][CONNECTION]
        app = self._apps.get(scope["path"].strip("/").partition("/")[0]) or self._apps[""]
        connection.running = asyncio.current_task()
        self._figures.in_flight += 1
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            if not connection.is_lost:
                raise  # else nobody waits for the answer
        finally:
            self._figures.in_flight -= 1
            connection.running = None
            connection.release()
