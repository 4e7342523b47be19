"""The configurations of a cluster of three, as they are delivered, and their probes."""

from __future__ import annotations

import asyncio
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.commands import ROOT
from support.waiting import eventually

from nodes.up.embedded_cluster import free_ports
from nodes.up.embedded_server import find_binary

pytestmark = pytest.mark.integration
READY, ALIVE = "/healthz", "/healthz?js-server-only=true"
FOLDER = ROOT / "deploy" / "cluster"


def test_the_probes_are_those_of_the_page() -> None:
    page = (FOLDER / "README.md").read_text()
    assert f"http://HOST:8222{READY}`" in page
    assert f"http://HOST:8222{ALIVE}`" in page


@contextmanager
def started(server: int, folder: Path, ports: list[int]) -> Iterator[int]:
    """Run the configuration of one server, on loopback; gives the port of its probes. ports: of the
    routes, of the clients, of the probes of three servers."""
    client, http = ports[2 + server], ports[5 + server]
    text = (FOLDER / "common.conf").read_text()
    for name, port in (("port: 4222", client), ("http: 8222", http)):
        text = text.replace(name, f"{name.split(':')[0]}: {port}")
    text = text.replace("port: 6222", f"listen: '127.0.0.1:{ports[server - 1]}'")
    for number, port in enumerate(ports[:3], 1):
        text = text.replace(f"nats-{number}:6222", f"127.0.0.1:{port}")
    text = text.replace("/var/lib/nats", str(folder / "store"))
    folder.mkdir()
    (folder / "common.conf").write_text(text)
    path = folder / f"server-{server}.conf"
    path.write_text((FOLDER / path.name).read_text())
    process = subprocess.Popen(
        [find_binary(), "-c", str(path), "--log", str(folder / "log")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield http
    finally:
        process.kill()
        process.wait()


def status(port: int, probe: str) -> int:
    """The code of a probe; 0 where nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{probe}", timeout=2) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def logs(folder: Path) -> str:
    """What the servers said at last."""
    return "\n".join(log.read_text()[-3000:] for log in sorted(folder.glob("*/log")))


async def becomes(port: int, probe: str, wanted: int) -> None:
    """Wait until a probe gives this code."""

    async def is_so() -> bool:
        return await asyncio.to_thread(status, port, probe) == wanted

    await eventually(is_so, f"{probe} gives {wanted}")


async def test_a_server_that_waits_for_the_others_is_alive_and_not_ready(tmp_path: Path) -> None:
    ports = free_ports(9)
    with ExitStack() as stack:
        first = stack.enter_context(started(1, tmp_path / "1", ports))
        await becomes(first, ALIVE, 200)
        assert status(first, READY) == 503
        for server in (2, 3):
            stack.enter_context(started(server, tmp_path / str(server), ports))
        try:
            await becomes(first, READY, 200)
        except AssertionError as error:
            raise AssertionError(logs(tmp_path)) from error
