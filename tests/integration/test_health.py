"""A real node tells the programs that look after it how it is."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import pytest
from support.meshes import READY, dismiss, mesh_of, split_digits
from support.ports import free_port
from support.waiting import eventually

from nodes.up.mesh import push

pytestmark = [pytest.mark.integration, pytest.mark.processes]


async def checked(path: Path, probe: str = "readyz") -> int:
    """The exit code of a check, as a container's health check runs it."""
    program = Path(sys.executable).with_name("swarm-node")
    process = await asyncio.create_subprocess_exec(
        program,
        *("--check", probe, "--health", str(path)),
        stdout=asyncio.subprocess.DEVNULL,
    )
    async with asyncio.timeout(READY):
        return await process.wait()


async def is_ready(path: Path) -> bool:
    return await checked(path) == 0


def probe(port: int, name: str) -> int:
    """The HTTP status of a probe, 0 where nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0  # nobody listens


async def test_a_node_is_live_at_once_and_ready_once_it_serves_until_it_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, port, result = tmp_path / "health", free_port(), split_digits()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        async with mesh_of() as local:
            more = ("--health", str(path), "--metrics-port", str(port))
            node = local.start("shard-1", "digits", *more)
            asked = partial(asyncio.to_thread, probe, port)
            await eventually(partial(asked, "livez"), "the node listens", READY)
            assert await asked("livez") == 200
            assert await asked("startupz") == 503
            assert await checked(path) == 1
            await push(local, result.manifest.to_json(), result.files)
            await local.ready(READY)
            assert [await asked(name) for name in ("livez", "readyz", "startupz")] == [200] * 3
            assert await checked(path) == 0
            node.signal(signal.SIGSTOP)
            assert await checked(path, "livez") == 1
            node.signal(signal.SIGCONT)
            await eventually(partial(is_ready, path), "it answers again")
            assert await dismiss(local, [node]) == [0]
            assert not path.exists()
        heard = b"".join(iter(partial(received, manager), b"")).decode()
    assert heard.index("STATUS=waiting") < heard.index("READY=1") < heard.index("STOPPING=1")
    assert "WATCHDOG=1" in heard


def received(manager: socket.socket) -> bytes:
    """The next datagram, nothing where there is none."""
    try:
        return manager.recv(4096)
    except BlockingIOError:
        return b""
