"""What the contenders behind HTTP share: a client that posts raw tensor bytes."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from bench.rivals.contract import START_TIMEOUT, AsyncContender
from bench.rivals.processes import accepts
from bench.rivals.systems.http_client import HttpClient
from bench.rivals.workload import Tensors, Workload, pack, unpack

OCTETS = {"Content-Type": "application/octet-stream"}
HEALTH_INTERVAL = 0.02
"""Seconds between two looks at the health path."""


class HttpContender(AsyncContender):
    """Starts the servers with :meth:`launch`, then posts raw tensor bytes to ``path``."""

    path = "/"
    health: ClassVar[str | None] = None
    """A path that answers 200 once every stage can serve; ``None``: an open port is enough."""

    def __init__(self, workload: Workload, scratch: Path) -> None:
        super().__init__(workload, scratch)
        self._port = 0
        self._client: HttpClient | None = None

    @abstractmethod
    def launch(self) -> int:
        """Start every process; returns the port that takes requests."""

    def start(self) -> None:
        self._port = self.launch()
        self._processes.wait(lambda: accepts(self._port), START_TIMEOUT, type(self).__name__)
        super().start()

    async def open(self) -> None:
        self._client = HttpClient(self._port)
        while self.health is not None:
            if await self._client.healthy(self.health):
                break
            await asyncio.sleep(HEALTH_INTERVAL)

    async def ask(self, inputs: Tensors) -> Tensors:
        assert self._client is not None
        payload = pack(inputs, self.workload.inputs[0])
        _, data = await self._client.post(self.path, [payload], OCTETS)
        return unpack(data, self.workload.outputs[-1])

    async def close(self) -> None:
        if self._client is not None:
            self._client.close()
