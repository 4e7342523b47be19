"""The web application: the page, the stream of changes, JSON for programs, and acts."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nodes.watch.dashboard.acts import Acts
from nodes.watch.dashboard.feed import DashboardFeed
from swarm.errors import InvalidArgument, SwarmError

PAGE = Path(__file__).parent / "page"
MOST_BODY = 4096  # bytes of a request for an act
# The page has no script, style or picture but its own, and no other page may frame it. Whatever a
# node calls itself is text there; this is the second wall.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
NOT_KEPT = {"cache-control": "no-store"}


class SafeHeaders:
    """Adds `HEADERS` to each answer."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        await self.app(scope, receive, send_with_headers)


def application(
    feed: DashboardFeed, acts: Acts | None, token: str, hosts: Sequence[str]
) -> Starlette:
    """acts: None where the page is only read. token: who has it may act. hosts: names by which the
    page may be asked for: a page elsewhere that points its own name at this address gets nothing.
    """
    web = _Web(feed, acts, token)
    return Starlette(
        routes=[
            Route("/", web.page),
            Route("/stream", web.stream),
            Route("/api/picture", web.picture),
            Route("/api/node/{node}/history", web.history),
            Route("/api/acts", web.what_may_be_done),
            Route("/api/act", web.act, methods=["POST"]),
            Route("/healthz", web.health),
            Mount("/page", StaticFiles(directory=PAGE)),
        ],
        middleware=[
            Middleware(SafeHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)),
        ],
    )


class _Web:
    def __init__(self, feed: DashboardFeed, acts: Acts | None, token: str) -> None:
        self._feed = feed
        self._acts = acts
        self._token = token

    async def page(self, request: Request) -> Response:
        return FileResponse(PAGE / "index.html", headers={"cache-control": "no-cache"})

    async def stream(self, request: Request) -> Response:
        if self._feed.is_full:
            return JSONResponse({"error": "too many browsers look at this page"}, 503)
        return StreamingResponse(
            self._feed.browser(), media_type="text/event-stream", headers=NOT_KEPT
        )

    async def picture(self, request: Request) -> Response:
        return JSONResponse(self._feed.state.whole(time.monotonic()), headers=NOT_KEPT)

    async def history(self, request: Request) -> Response:
        history = self._feed.state.history_of(request.path_params["node"])
        if history is None:
            return JSONResponse({"error": "no such node"}, 404)
        return JSONResponse(history, headers=NOT_KEPT)

    async def health(self, request: Request) -> Response:
        connected = self._feed.state.link.connected
        return JSONResponse({"connected": connected}, 200 if connected else 503)

    async def what_may_be_done(self, request: Request) -> Response:
        """Which acts this page offers, and why it offers none."""
        acts = self._acts
        why = "started without --allow-actions" if acts is None else acts.refusal()
        allowed = acts is not None and not why
        known = allowed and self._has_token(request)
        return JSONResponse({"allowed": allowed, "why": why, "token": known}, headers=NOT_KEPT)

    async def act(self, request: Request) -> Response:
        """Do one act: {"act": "drain", "node": …}, or promote, rollback with "model", "version"."""
        if self._acts is None:
            return JSONResponse({"error": "started without --allow-actions"}, 403)
        if not self._has_token(request):
            text = "this browser has no right to act: open the address with the token"
            return JSONResponse({"error": text}, 401)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return JSONResponse({"error": "an act is a JSON object"}, 415)
        return await _answered(lambda: self._act(request))

    async def _act(self, request: Request) -> dict[str, Any]:
        assert self._acts is not None
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_BODY:
                raise InvalidArgument("an act is a small JSON object")
        document: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(body)
        if not isinstance(document, dict):
            raise InvalidArgument("an act is a JSON object")
        where = request.client.host if request.client is not None else ""
        return await self._acts.do(document, where)

    def _has_token(self, request: Request) -> bool:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        return bool(self._token) and secrets.compare_digest(given.encode(), self._token.encode())


async def _answered(work: Callable[[], Awaitable[dict[str, Any]]]) -> Response:
    """What was done, or the error, for a person."""
    try:
        return JSONResponse(await work(), headers=NOT_KEPT)
    except SwarmError as error:
        document = {"error": str(error), "status": str(error.status)}
        return JSONResponse(document, 409, headers=NOT_KEPT)
