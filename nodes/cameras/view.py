"""`--view 127.0.0.1:8090`: a page that shows what each camera sees, for devices without a screen.

The page shows frames that the mask has cleared, and no others. It binds to loopback alone; from
another machine: `ssh -L 8090:127.0.0.1:8090 DEVICE`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from nodes.cameras.board import MOST_WATCHERS, Board
from nodes.place import LOOPBACK, ListenPlace
from swarm.errors import InvalidArgument

PAGE = Path(__file__).parent / "page"
# The page has nothing but its own files, and no other page may frame or embed what it shows.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
BOUNDARY = "frame"
NAMES = ["127.0.0.1", "localhost", "[::1]"]


def own_place(text: str) -> ListenPlace:
    """Of `--view`: a place that only this machine reaches. Raises `InvalidArgument`."""
    place = ListenPlace.of(text)
    if not place.is_loopback:
        raise InvalidArgument(
            f"--view {text}: whoever reaches {place.host} would see through the cameras. Serve it "
            f"at {LOOPBACK}, and look from another machine by "
            f"ssh -L {place.port}:{LOOPBACK}:{place.port} …"
        )
    return place


def application(board: Board, state: Callable[[], dict[str, Any]]) -> Starlette:
    """state: what the page tells beside the pictures, as JSON has it."""

    async def index(request: Request) -> Response:
        return FileResponse(PAGE / "index.html", headers=HEADERS)

    async def told(request: Request) -> Response:
        return JSONResponse(state(), headers=HEADERS)

    async def stream(request: Request) -> Response:
        camera = request.path_params["camera"]
        if camera not in {each["name"] for each in state()["cameras"]}:
            return JSONResponse({"error": "no such camera"}, 404, headers=HEADERS)
        if board.watchers >= MOST_WATCHERS:
            return JSONResponse({"error": "too many watch already"}, 503, headers=HEADERS)
        kind = f"multipart/x-mixed-replace; boundary={BOUNDARY}"
        return StreamingResponse(_parts(board, camera), media_type=kind, headers=HEADERS)

    return Starlette(
        routes=[
            Route("/", index),
            Route("/state.json", told),
            Route("/camera/{camera}.mjpg", stream),
            Mount("/page", StaticFiles(directory=PAGE)),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=NAMES)],
    )


async def _parts(board: Board, camera: str) -> AsyncIterator[bytes]:
    yield f"--{BOUNDARY}\r\n".encode()
    async with contextlib.aclosing(board.watch(camera)) as pictures:
        async for data in pictures:
            # A browser shows a part once the next boundary has come: it follows at once.
            head = f"Content-Type: image/jpeg\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            yield head + data + f"\r\n--{BOUNDARY}\r\n".encode()


class _Server(uvicorn.Server):
    """Leaves signals to the node."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(app: Starlette, sock: socket.socket, board: Board) -> None:
    """Serve until cancelled."""
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        lifespan="off",
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[sock]), name="page")
    try:
        await asyncio.shield(serving)
    finally:
        board.close()
        server.should_exit = True
        await asyncio.wait({serving}, timeout=3.0)
