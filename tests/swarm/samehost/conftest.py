"""Processes of one host, closed with their test; one that hangs; a burst that a test ends."""

from __future__ import annotations

import math
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from host_processes import Make, Process

from swarm.link import gather
from swarm.samehost.socket_directory import SocketDirectory


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[Process] = []

    def one(**options: Any) -> Process:
        made.append(Process(str(tmp_path), **options))
        return made[-1]

    yield one
    for process in made:
        process.close()


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[str]:
    """The inbox of a process that is there, and does not read."""
    names = SocketDirectory(str(tmp_path))
    names.enter()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unread:
        unread.bind(names.path("_INBOX.hung"))
        yield "_INBOX.hung"


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst lasts until its end, however slow the machine is."""
    monkeypatch.setattr(gather, "LONGEST_BURST", math.inf)
