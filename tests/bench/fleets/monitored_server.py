"""An embedded server whose counters can be read: messages and bytes, CPU time, memory.

The counters of messages come from the monitoring endpoint `/varz`:

https://docs.nats.io/running-a-nats-service/nats_admin/monitoring
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import psutil
from support.ports import free_port

from nodes.up.embedded_server import EmbeddedServer


@dataclass(frozen=True, slots=True)
class ServerReading:
    """Counts since the server's start. messages, octets: from and to clients together, so a
    message with one receiver counts twice. cpu: seconds. rss: bytes."""

    messages: int
    octets: int
    cpu: float
    rss: int
    connections: int


class MonitoredServer(EmbeddedServer):
    """`async with MonitoredServer() as server: await server.read()`."""

    def __init__(self) -> None:
        super().__init__()
        self._monitor = free_port()

    async def __aenter__(self) -> MonitoredServer:
        await self.start()
        return self

    def _configuration(self, directory: Path) -> str:
        return super()._configuration(directory) + f'http: "127.0.0.1:{self._monitor}"\n'

    async def read(self) -> ServerReading:
        """Ask the server. Raises `OSError` when it does not answer."""
        varz = await asyncio.to_thread(self._varz)
        process = psutil.Process(self.pid)
        times = process.cpu_times()
        return ServerReading(
            int(varz["in_msgs"]) + int(varz["out_msgs"]),
            int(varz["in_bytes"]) + int(varz["out_bytes"]),
            times.user + times.system,
            process.memory_info().rss,
            int(varz["connections"]),
        )

    def _varz(self) -> dict[str, int]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._monitor}/varz", timeout=10) as answer:
            found: dict[str, int] = json.load(answer)
            return found
