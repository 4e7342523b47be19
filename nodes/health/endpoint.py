"""A small HTTP server in threads of its own, on a TCP port or on a socket in the file system.

It answers while the event loop hangs, so that a probe learns of that.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import http.client
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, TypeVar

from nodes.health.health import NO_ANSWER, PROBES, NodeHealth, ProbeAnswer
from nodes.place import ListenPlace
from nodes.settings import WrongSetting

SNAPSHOT_TIMEOUT = 2.0  # seconds in which the event loop tells what is known
CLIENT_TIMEOUT = 5.0  # seconds for a client that does not go on
CHECK_TIMEOUT = 4.0  # seconds for the answer to a check

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page:
    """An answer: its HTTP status, type and bytes."""

    status: int
    kind: str
    body: bytes


Pages = Mapping[str, Callable[[str], Page]]  # by path; each is given the header `Accept`


def on_loop(loop: asyncio.AbstractEventLoop, question: Callable[[], T]) -> T:
    """The answer of the event loop, whose objects no other thread may walk; called by a thread.
    Raises `TimeoutError` where the loop does not turn, and what the question raises."""
    told: concurrent.futures.Future[T] = concurrent.futures.Future()

    def tell() -> None:
        try:
            told.set_result(question())
        except Exception as error:
            told.set_exception(error)  # raised where the answer is waited for

    loop.call_soon_threadsafe(tell)
    return told.result(SNAPSHOT_TIMEOUT)


def probes(loop: asyncio.AbstractEventLoop, health: Callable[[], NodeHealth]) -> Pages:
    """The pages `/livez`, `/readyz` and `/startupz`: 200 for yes, 503 for no, each with a reason.
    health() is called on the loop."""

    def page(probe: str, _accept: str) -> Page:
        try:
            verdict = on_loop(loop, health).verdict(probe)
        except TimeoutError:
            verdict = ProbeAnswer(False, NO_ANSWER)
        return Page(200 if verdict.ok else 503, "text/plain", f"{verdict.reason}\n".encode())

    return {f"/{probe}": partial(page, probe) for probe in PROBES}


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextmanager
def endpoint(where: ListenPlace | Path, pages: Pages) -> Iterator[int]:
    """Serve pages; gives the port, 0 for a socket in the file system. Raises `WrongSetting`
    where nobody may listen there."""

    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_TIMEOUT

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            answer = pages.get(path, pages.get("*"))
            if answer is None:
                page = Page(404, "text/plain", f"there is {', '.join(pages)}\n".encode())
            else:
                page = answer(self.headers.get("Accept", ""))
            self.send_response(page.status)
            self.send_header("Content-Type", page.kind)
            self.send_header("Content-Length", str(len(page.body)))
            self.end_headers()
            self.wfile.write(page.body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """A probe each second is no news."""

        def address_string(self) -> str:
            return str(self.client_address)

    server: socketserver.BaseServer
    port = 0
    try:
        if isinstance(where, Path):
            with suppress(FileNotFoundError):
                where.unlink()  # of a node that was killed
            server = _UnixServer(str(where), Handler)
            where.chmod(0o600)
        else:
            kind = _Server6 if ":" in where.host else _Server
            server = kind((where.host, where.port), Handler)
            port = server.server_address[1]
    except OSError as error:
        place = where if isinstance(where, Path) else where.at(where.port)
        raise WrongSetting(
            f"nobody may listen on {place}: {error.strerror or error}: choose another place"
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="endpoint", daemon=True)
    thread.start()
    try:
        yield port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(SNAPSHOT_TIMEOUT)
        if isinstance(where, Path):
            with suppress(FileNotFoundError):
                where.unlink()


def asked(path: Path, probe: str) -> ProbeAnswer:
    """The answer of the node that listens on a socket in the file system."""
    connection = http.client.HTTPConnection("localhost", timeout=CHECK_TIMEOUT)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(CHECK_TIMEOUT)
    try:
        connection.sock.connect(os.fspath(path))
        connection.request("GET", f"/{probe}")
        answer = connection.getresponse()
        return ProbeAnswer(
            answer.status == 200, answer.read(4096).decode("utf-8", "replace").strip()
        )
    except OSError as error:
        return ProbeAnswer(False, f"no node answers at {path}: {error.strerror or error}")
    finally:
        connection.close()
