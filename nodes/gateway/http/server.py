"""The HTTP server: it listens beside a node, in the node's event loop, and drains with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator, Mapping

import uvicorn

from nodes.gateway.access.browsers import LOOPBACK_NAMES, Browsers
from nodes.gateway.door import Figures, Page
from nodes.gateway.hand import BytesInHand
from nodes.gateway.http.application import Paths
from nodes.gateway.http.connection import HttpBounds, connection_class
from nodes.gateway.settings import GatewayOptions
from nodes.place import LOOPBACK, ListenPlace
from swarm.errors import Unavailable

log = logging.getLogger("swarm.gateway")

START_TIMEOUT = 10.0  # seconds
BACKLOG = 512  # connections that wait to be accepted
BOUNDS = HttpBounds()


class HttpServer:
    """A `Door`. Without `options.http` it takes a free port of loopback.

    apps: ASGI applications, by the first part of their paths; "" for all other paths. hand: of the
    bytes of all requests. tls: its files may be loaded again while it serves.
    """

    def __init__(
        self,
        apps: Mapping[str, Page],
        options: GatewayOptions,
        hand: BytesInHand,
        *,
        tls: ssl.SSLContext | None = None,
        bounds: HttpBounds = BOUNDS,
    ) -> None:
        self.figures = Figures()
        self._place = options.http_place or ListenPlace(LOOPBACK, 0)
        self._paths = Paths(apps, self.figures)
        self._options = options
        self._tls = tls
        self._bounds = bounds
        self._hand = hand
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """See `Door`."""
        return self._port

    async def start(self) -> None:
        """See `Door`."""
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # one line a bad request else
        sock = self._place.listen("--http", BACKLOG)
        self._port = sock.getsockname()[1]
        config = uvicorn.Config(
            _for_browsers(self._paths, self._options),
            http=connection_class(self._bounds, self.figures, self._hand),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
        )
        config.timeout_keep_alive = self._bounds.idle_time  # type: ignore[assignment]
        config.load()
        config.ssl = self._tls
        self._server = server = _Server(config)
        self._serving = asyncio.create_task(server.serve(sockets=[sock]), name="http")
        listening = asyncio.create_task(server.listening.wait())
        done = {listening, self._serving}
        await asyncio.wait(done, timeout=START_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            listening.cancel()
            await self.drain(0.0)
            raise Unavailable(f"HTTP did not start within {START_TIMEOUT:g} s")
        log.info("HTTP clients may ask at %s", self._place.at(self._port))

    def begin_drain(self) -> None:
        """Say so: `v2/health/ready` is 503 from now on, and each answer ends its connection.
        Requests are still answered, until `drain`."""
        self.figures.is_draining = True

    async def drain(self, timeout: float) -> None:
        """See `Door`."""
        self.begin_drain()
        server, serving = self._server, self._serving
        if server is None or serving is None:
            return
        server.config.timeout_graceful_shutdown = max(1, round(timeout))
        server.end()
        await asyncio.wait({serving}, timeout=timeout + 2.0)
        if not serving.done():
            log.warning("HTTP did not end within %g s", timeout)
            serving.cancel()
            await asyncio.wait({serving}, timeout=1.0)


class _Server(uvicorn.Server):
    """Leaves signals to the node."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._ends = asyncio.Event()

    def end(self) -> None:
        """Let `serve` end."""
        self.should_exit = True
        self._ends.set()

    async def main_loop(self) -> None:
        """As uvicorn's, which wakes ten times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._ends.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _for_browsers(app: Page, options: GatewayOptions) -> Page:
    """The application, for pages of the origins that may ask. Without keys, a page elsewhere that
    points its own name at loopback gets nothing."""
    place = options.http_place
    anybody = not (options.callers or options.open)
    names = LOOPBACK_NAMES if anybody and (place is None or place.is_loopback) else ()
    return Browsers(app, options.origins, names)
