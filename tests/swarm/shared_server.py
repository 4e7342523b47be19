"""One nats-server for all tests of a worker, which each of them leaves as it found it."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from support.waiting import eventually_now

from nodes.up.embedded_server import EmbeddedServer

TIMEOUT = 30.0  # seconds
ANSWERS = "_INBOX.shared.server"


class SharedServer:
    """Tests that kill it, stop it or want another configuration take `own_server`."""

    def __init__(self, users: str = "") -> None:
        """users: lines of its configuration. With some, the streams that tests make stay."""
        self._server = EmbeddedServer(more='http: "127.0.0.1:-1"\n' + users)
        self._has_users = bool(users)
        self._monitor: http.client.HTTPConnection | None = None
        self.host = self._server.host
        self.max_payload = self._server.max_payload

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def log(self) -> str:
        """What it has said, in all tests so far."""
        return self._server.log

    def start_now(self) -> None:
        """Start it, without an event loop."""
        _run(self._server.start())
        assert self._server.pid_file is not None
        [ports] = self._server.pid_file.parent.glob("*.ports")
        [monitor] = json.loads(ports.read_text())["monitoring"]
        self._monitor = http.client.HTTPConnection(monitor.rpartition("//")[2], timeout=TIMEOUT)

    def stop_now(self) -> None:
        """Stop it; its process must be gone then."""
        pid = self._server.pid
        if self._monitor is not None:
            self._monitor.close()
        _run(self._server.stop())
        assert not Path(f"/proc/{pid}").exists(), "the server outlives its tests"

    def tidy(self) -> None:
        """Delete the streams of the test that ends, and wait until its connections have ended;
        fails where they do not."""
        if not self._has_users:
            self._delete_streams()
        eventually_now(lambda: not self._connections(), "the end of the test's connections")

    def _connections(self) -> list[str]:
        """The names of whoever is connected."""
        assert self._monitor is not None
        self._monitor.request("GET", "/connz")
        found = json.loads(self._monitor.getresponse().read())["connections"]
        return [str(each.get("name", "")) for each in found]

    def _delete_streams(self) -> None:
        with socket.create_connection((self.host, self.port), TIMEOUT) as connected:
            lines = connected.makefile("rwb")
            lines.readline()  # INFO
            lines.write(b'CONNECT {"verbose": false}\r\nSUB %b 1\r\n' % ANSWERS.encode())
            while names := _call(lines, "$JS.API.STREAM.NAMES").get("streams"):
                for name in names:
                    _call(lines, f"$JS.API.STREAM.DELETE.{name}")
            lines.close()


def _call(lines: Any, subject: str) -> dict[str, Any]:
    """One call of JetStream."""
    lines.write(f"PUB {subject} {ANSWERS} 0\r\n\r\n".encode())
    lines.flush()
    while line := lines.readline():
        if line.startswith(b"MSG"):
            answer = json.loads(lines.read(int(line.split()[-1]) + 2))
            assert "error" not in answer, answer
            return dict(answer)
        if line == b"PING\r\n":
            lines.write(b"PONG\r\n")
            lines.flush()
    raise AssertionError("the server ended the connection")


def _run(work: Awaitable[None]) -> None:
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()
