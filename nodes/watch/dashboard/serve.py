"""Where the page is served: an address, TLS or not, and the web server."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import uvicorn
from starlette.applications import Starlette

from swarm.errors import InvalidArgument

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
GRACE = 1  # seconds that open requests get when the server ends


@dataclass(frozen=True, slots=True)
class Place:
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
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

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
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.host, self.port))
            sock.listen(128)
        except OSError as error:
            raise InvalidArgument(
                f"cannot serve at {self.host}:{self.port} ({error.strerror}): "
                "--port 0 takes a free port"
            ) from None
        return sock

    def url(self, sock: socket.socket) -> str:
        """The address to open."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.certificate else ''}://{host}:{sock.getsockname()[1]}/"


class _Server(uvicorn.Server):
    """Leaves signals to the command that runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(app: Starlette, place: Place, sock: socket.socket, stop: asyncio.Event) -> None:
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
