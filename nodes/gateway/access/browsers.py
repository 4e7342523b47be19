"""What pages in a browser may ask of a gateway: its own page, and pages of origins that are listed.

A browser lets a page send simple requests anywhere, and a page can point its own host name at this
machine. So a request with a foreign `Origin` is refused, and on loopback one for a foreign `Host`.
A request without `Host` is HTTP/1.0, which no browser speaks: probes and balancers do.
"""

from __future__ import annotations

import json
from collections.abc import Collection, MutableMapping
from typing import Any

from nodes.gateway.door import Page, Receive, Scope, Send

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
ASKED_AGAIN = b"600"  # seconds for which a browser keeps the answer to a preflight
MAY_SEND = (
    b"content-type, inference-header-content-length, authorization, x-api-key, traceparent, "
    b"swarm-agent, swarm-session, swarm-priority"
)
MAY_READ = b"inference-header-content-length, retry-after, retry-after-ms"


class Browsers:
    """An ASGI application in front of another one. origins: of pages that may ask, as a browser
    writes them. names: hosts that may be asked for, () for any."""

    def __init__(
        self, application: Page, origins: Collection[str], names: Collection[str] = ()
    ) -> None:
        self._application = application
        self._origins = frozenset(origin.rstrip("/").encode() for origin in origins)
        self._names = frozenset(name.encode() for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        origin = b""
        host: bytes | None = None
        for name, value in scope["headers"]:
            if name == b"origin":
                origin = value
            elif name == b"host":
                host = value
        if self._names and host is not None and _without_port(host) not in self._names:
            text = "on loopback the gateway is asked by the name localhost, or by address"
            await _refuse(send, text)
            return
        if not origin or origin.partition(b"://")[2] == host:
            await self._application(scope, receive, send)
            return
        if origin not in self._origins:
            await _refuse(send, "pages of this origin may not ask: --gateway-cors lists origins")
            return
        allowed = [(b"access-control-allow-origin", origin), (b"vary", b"origin")]
        if scope["method"] == "OPTIONS":
            allowed += [
                (b"access-control-allow-methods", b"GET, POST"),
                (b"access-control-allow-headers", MAY_SEND),
                (b"access-control-max-age", ASKED_AGAIN),
            ]
            await send({"type": "http.response.start", "status": 204, "headers": allowed})
            await send({"type": "http.response.body"})
            return
        allowed.append((b"access-control-expose-headers", MAY_READ))

        async def send_allowed(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *allowed]}
            await send(message)

        await self._application(scope, receive, send_allowed)


def _without_port(host: bytes) -> bytes:
    """`[::1]:80` without its port."""
    name, colon, port = host.rpartition(b":")
    return name if colon and port.isdigit() else host


async def _refuse(send: Send, text: str) -> None:
    body = json.dumps({"error": text}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
