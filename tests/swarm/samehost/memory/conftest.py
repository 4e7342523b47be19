from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swarm.samehost.memory import unavailable
from swarm.samehost.memory.claim import mesh_of

DIRECTORY = Path("/dev/shm")
PEER = Path(__file__).with_name("shm_peer.py")
ROOT = Path(__file__).parents[4]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if reason := unavailable():
        for item in items:
            if Path(item.fspath).parent == Path(__file__).parent:
                item.add_marker(pytest.mark.skip(reason=reason))


class Peer:
    """A process of its own with a ring and a reader, driven by lines of JSON."""

    def __init__(self, mesh: str, *prefix: str, directory: str = str(DIRECTORY)) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(PEER), mesh, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )

    def ask(self, action: str, **arguments: Any) -> Any:
        self.tell(action, **arguments)
        return self.answer()

    def tell(self, action: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([action, arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the peer died, exit status {self.process.wait(5)}"
        return json.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(5)


@pytest.fixture
def mesh() -> Iterator[str]:
    name = f"test-{secrets.token_hex(6)}"
    yield name
    for left in segments(name):
        with contextlib.suppress(FileNotFoundError):
            left.unlink()


@pytest.fixture
def start(mesh: str) -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def begin(*prefix: str, **options: str) -> Peer:
        peers.append(Peer(mesh, *prefix, **options))
        return peers[-1]

    yield begin
    for peer in peers:
        peer.kill()
        assert peer.process.stdin is not None
        assert peer.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            peer.process.stdin.close()
        peer.process.stdout.close()


def segments(mesh: str) -> list[Path]:
    return [path for path in DIRECTORY.iterdir() if mesh_of(path.name) == mesh]


@pytest.fixture
def left(mesh: str) -> Callable[[], list[Path]]:
    """The files of this test's mesh that exist now."""
    return lambda: segments(mesh)
