"""Processes of one host that reach each other by sockets, for the tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swarm.link import Link, LinkOptions
from swarm.samehost.host_socket import HostSocket
from swarm.samehost.socket_directory import VERSION


class Process(HostSocket):
    """The socket of a process, and the link that it belongs to."""

    def __init__(self, directory: str, **options: Any) -> None:
        self.link = Link(LinkOptions())
        super().__init__(self.link, directory=directory, **options)

    @property
    def inbox(self) -> str:
        return self.link.options.inbox

    @property
    def errors(self) -> int:
        return self.link.callback_errors


Make = Callable[..., Process]
LIMIT = 30.0  # seconds; only a hang gets there


def two(make: Make) -> tuple[Process, Process, str]:
    """Two processes that are reachable, and where the second one is."""
    a, b = make(), make()
    a.open()
    return a, b, b.open()


async def next_of(process: Process, subject: str) -> asyncio.Queue[tuple[bytes, int]]:
    queue: asyncio.Queue[tuple[bytes, int]] = asyncio.Queue()
    process.listen(subject, lambda data, sent, _reply: queue.put_nowait((data, sent)))
    return queue


def directory(tmp_path: Path) -> Path:
    return tmp_path / f"swarm.{os.geteuid()}.{VERSION}"
