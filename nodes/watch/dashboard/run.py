"""The dashboard as a whole: it hears a mesh, and serves the page."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette

from nodes.place import ListenPlace as Address
from nodes.watch.dashboard.acts import Acts
from nodes.watch.dashboard.feed import DashboardFeed
from nodes.watch.dashboard.page_state import PageState
from nodes.watch.dashboard.source import MeshSource
from nodes.watch.dashboard.web import application
from swarm.errors import InvalidArgument
from swarm.link import Link, LinkOptions
from swarm.models.registry import Registry
from swarm.subjects import Subjects

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
GRACE = 1  # seconds that open requests get when the server ends


@dataclass(frozen=True, slots=True)
class DashboardPlace:
    """Where to serve. host: an address of this machine. port: 0 for a free one. certificate, key:
    PEM files, "" for no TLS. open_http: whether strangers may be served without TLS."""

    host: str = "127.0.0.1"
    port: int = 8321
    certificate: str = ""
    key: str = ""
    open_http: bool = False

    def check(self, acts: bool) -> None:
        """acts: whether the page may act. Raises `InvalidArgument` for a place that would show the
        fleet, or the right to change it, to a whole network by mistake."""
        if bool(self.certificate) != bool(self.key):
            raise InvalidArgument("--https-cert and --https-key go together")
        if self.is_loopback or self.certificate:
            return
        if acts:
            raise InvalidArgument(
                f"--host {self.host} with --allow-actions needs --https-cert and --https-key: the "
                "right to act would travel in the clear"
            )
        if not self.open_http:
            raise InvalidArgument(
                f"--host {self.host} shows the fleet to everybody who reaches it: give "
                "--https-cert and --https-key, or --open-http if that is meant"
            )

    @property
    def is_loopback(self) -> bool:
        return self._address.is_loopback

    @property
    def names(self) -> Sequence[str]:
        """Names by which browsers may ask. On loopback only its own: a web page elsewhere whose
        name points here is refused."""
        return LOOPBACK_NAMES if self.is_loopback else ("*",)

    def listen(self) -> socket.socket:
        """A listening socket. Raises `InvalidArgument`; for TLS files that cannot be used too."""
        if self.certificate:
            try:
                ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                    self.certificate, self.key
                )
            except (OSError, ssl.SSLError) as error:
                raise InvalidArgument(f"--https-cert, --https-key: {error}") from None
        return self._address.listen("--port")

    def url(self, sock: socket.socket) -> str:
        """The address to open."""
        address = self._address.at(sock.getsockname()[1])
        return f"http{'s' if self.certificate else ''}://{address}/"

    @property
    def _address(self) -> Address:
        return Address(self.host, self.port)


class _Server(uvicorn.Server):
    """Leaves signals to the command that runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: Starlette, place: DashboardPlace, sock: socket.socket, stop: asyncio.Event
) -> None:
    """Serve until `stop` is set."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=place.certificate or None,
        ssl_keyfile=place.key or None,
        lifespan="off",
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[sock]), name="web server")
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        stopped.cancel()
        await asyncio.wait({serving}, timeout=GRACE + 2.0)
    if serving.done():
        serving.result()


class Dashboard:
    """`run()` serves until it is told to stop. token: who has it may act; "" where nobody may."""

    def __init__(self, link: LinkOptions, mesh: str) -> None:
        self._feed = DashboardFeed(PageState(mesh))
        self._source = MeshSource(link, self._feed.state, self._feed.news, self._feed.urgent)
        self._acts: Acts | None = None
        self.token = ""

    @property
    def link(self) -> Link:
        return self._source.link

    @property
    def subjects(self) -> Subjects:
        return self._source.subjects

    def allow_acts(self, registry: Registry, token: str) -> None:
        """Let whoever has the token act. registry: signs as an operator."""
        self._acts = Acts(self.link, self.subjects, registry)
        self.token = token

    async def run(self, place: DashboardPlace, sock: socket.socket, stop: asyncio.Event) -> None:
        """Hear the mesh and serve the page, until `stop` is set. Raises `InvalidArgument`."""
        app = application(self._feed, self._acts, self.token, place.names)
        async with asyncio.TaskGroup() as group:
            feed = group.create_task(self._feed.run(), name="feed")
            work = [
                feed,
                group.create_task(self._source.run(), name="the mesh"),
                # Open streams end first: the web server would wait for them.
                group.create_task(_end_with(stop, feed), name="end of the feed"),
            ]
            try:
                await serve(app, place, sock, stop)
            finally:
                for task in work:
                    task.cancel()
                await self.link.close()


async def _end_with(stop: asyncio.Event, task: asyncio.Task[None]) -> None:
    await stop.wait()
    task.cancel()
