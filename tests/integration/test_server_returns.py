"""The embedded server of `swarm up`: it dies, hangs, loses its files, and the fleet goes on."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from meshes import Command, Commands, good_request, split_digits, until

import swarm
from shards.zoo import digits_model
from swarm.errors import Unavailable

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


def all_of(run: Commands, url: str) -> dict[str, Any]:
    """`swarm status --json`."""
    return dict(json.loads(run.swarm("status", "--nats", url, "--json").stdout))


def status_of(run: Commands, url: str) -> dict[str, Any]:
    """The server's part of it."""
    return dict(all_of(run, url)["server"])


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


async def noted(run: Commands, url: str, kind: str) -> dict[str, Any]:
    """The first event of a kind that `swarm status` tells of."""
    deadline = time.monotonic() + BACK
    while True:
        # The supervisor's word may come behind those of the nodes, which end the look.
        told = await asyncio.to_thread(all_of, run, url)
        notes = told.get("server", {}).get("notes", [])
        found = [note for note in notes if note["kind"] == kind]
        if found:
            return dict(found[0])
        assert time.monotonic() < deadline, f"no {kind} in {notes}"


async def test_where_its_files_are_deleted_the_fleet_goes_on_and_up_puts_its_model_back(
    run: Commands, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    command, ready = up(run, tmp_path, TMPDIR=str(temporary))
    async with swarm.connect(ready["nats"]) as mesh:
        await good_request(mesh)
        (directory,) = temporary.glob("swarm-nats-*")
        shutil.rmtree(directory)
        gone = await noted(run, ready["nats"], "store-gone")
        assert "next start" in gone["lost"][0]
        assert gone["kept"]
        await good_request(mesh)
        assert await mesh.registry.serving("digits") == "1", "open files are read all the same"

        server = server_of(command)
        assert server is not None
        server.kill()
        await next_server(command, server)
        restored = await noted(run, ready["nats"], "put-back")
        assert "manifest" in restored["restored"]
        restarted = await noted(run, ready["nats"], "server-restarted")
        assert any("keys" in lost for lost in restarted["lost"])
        assert restarted["kept"] == []
        await good_request(mesh, budget=BACK)
        names = [shard.file for shard in split_digits(stages=2).manifest.shards]
        assert await mesh.registry.lacking("digits", "1", names) == []
    # A node that starts now finds all that it needs.
    node = command.family[ready["nodes"][0]["pid"]]
    node.kill()
    async with swarm.connect(ready["nats"]) as newcomer:
        await good_request(newcomer, budget=30.0)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MiB that the test may fill."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None:
        pytest.skip("no `mount` here")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"mounting a small disk needs root rights: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """A file that takes all the room that is left."""
    path = folder / "fill"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"0" * 4096)
        except OSError:
            return path


async def test_a_full_disk_stops_no_request_and_room_brings_everything_back(
    run: Commands, tmp_path: Path, small_disk: Path
) -> None:
    command, ready = up(run, tmp_path, TMPDIR=str(small_disk))
    url = ready["nats"]
    async with swarm.connect(url) as mesh:
        await good_request(mesh)
        filled = fill(small_disk)
        full = await noted(run, url, "store-full")
        assert (full["lost"], len(full["kept"])) == ([], 2)
        second = split_digits(version="2", stages=2)
        with pytest.raises(Unavailable):
            await mesh.registry.push(second.manifest.to_json(), second.files)
        await good_request(mesh)

        server = server_of(command)
        assert server is not None
        server.kill()  # it starts again on the full disk too
        await next_server(command, server)
        await good_request(mesh, budget=BACK)
        assert await mesh.registry.serving("digits") == "1"

        await noted(run, url, "server-restarted")
        stuck = server_of(command)
        assert stuck is not None
        filled.unlink()
        await until(lambda: "room again" in command.stderr, BACK, "the server is started anew")
        await next_server(command, stuck)
        await good_request(mesh, budget=BACK)
        await mesh.registry.push(second.manifest.to_json(), second.files)
        await good_request(mesh, budget=BACK)
    assert (await asyncio.to_thread(status_of, run, url))["store"]["state"] == "fine"
    command.signal(signal.SIGINT)
    assert command.wait() == 0
