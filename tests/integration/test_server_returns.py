"""The embedded server of `swarm up`: it dies, hangs, loses its files, and the fleet goes on."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from meshes import Command, Commands, good_request, split_digits, until

import swarm
from shards.zoo import digits_model

pytestmark = [pytest.mark.integration, pytest.mark.processes]

KILLS = 10
BACK = 10.0  # seconds that a server may take to be back on a busy machine
HUNG = 12.0  # seconds until a hung server is killed and back


def up(run: Commands, tmp_path: Path, **settings: str) -> tuple[Command, dict[str, Any]]:
    """`swarm up` of digits in two shards, and its ready line."""
    file = tmp_path / "digits.onnx"
    file.write_bytes(digits_model())
    arguments = ["up", "--model", str(file), "--stages", "2", "--no-fallback", "--json"]
    command = run.start("nodes.cli.main", *arguments, env=settings)
    return command, command.ready_line()


def server_of(command: Command) -> psutil.Process | None:
    """The command's server process; None while there is none."""
    for child in psutil.Process(command.process.pid).children():
        try:
            if "nats-server" in child.name() and child.status() != psutil.STATUS_ZOMBIE:
                return child
        except psutil.NoSuchProcess:
            continue
    return None


async def next_server(command: Command, old: psutil.Process) -> psutil.Process:
    """The server that has followed the old one."""

    def is_new() -> bool:
        found = server_of(command)
        return found is not None and found.pid != old.pid

    await until(is_new, HUNG, "a new server")
    found = server_of(command)
    assert found is not None
    return found


def status_of(run: Commands, url: str) -> dict[str, Any]:
    """The server's part of `swarm status --json`."""
    return dict(json.loads(run.swarm("status", "--nats", url, "--json").stdout)["server"])


async def test_ten_kills_of_the_server_in_a_row_lose_no_request_and_no_key(
    run: Commands, tmp_path: Path
) -> None:
    command, ready = up(run, tmp_path)
    began = time.monotonic()
    async with swarm.connect(ready["nats"]) as mesh:
        await good_request(mesh)
        desired = await mesh.registry.desired("digits")
        for _ in range(KILLS):
            server = server_of(command)
            assert server is not None
            server.kill()
            await good_request(mesh, budget=BACK)  # while the server is away, or just back
            await next_server(command, server)
            await mesh.link.ready(BACK)
            async with swarm.connect(ready["nats"]) as newcomer:
                await good_request(newcomer, budget=BACK)
        assert await mesh.registry.desired("digits") == desired
        names = [shard.file for shard in split_digits(stages=2).manifest.shards]
        assert await mesh.registry.lacking("digits", "1", names) == []
    assert time.monotonic() - began < KILLS * 5.0
    server_status = await asyncio.to_thread(status_of, run, ready["nats"])
    assert server_status["restarts"] == KILLS
    assert server_status["store"]["state"] == "fine"
    note = server_status["notes"][-1]
    assert (note["kind"], len(note["lost"]), len(note["kept"])) == ("server-restarted", 1, 1)
    command.signal(signal.SIGINT)
    assert command.wait() == 0
    assert command.remaining() == []


async def test_a_server_that_hangs_is_killed_and_a_request_meanwhile_is_answered(
    run: Commands, tmp_path: Path
) -> None:
    command, ready = up(run, tmp_path)
    async with swarm.connect(ready["nats"]) as mesh:
        await good_request(mesh)
        server = server_of(command)
        assert server is not None
        server.suspend()
        began = time.monotonic()
        await good_request(mesh, budget=HUNG)
        await next_server(command, server)
        assert time.monotonic() - began > 2.5, "a server gets three seconds to answer"
        await mesh.link.ready(BACK)
        await good_request(mesh, budget=BACK)
    assert "answered nothing" in command.stderr
