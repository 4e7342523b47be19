"""The embedded server of `swarm up`: it dies, hangs, loses its files, and the fleet goes on."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from support.commands import Command, Commands, commands, said
from support.meshes import READY, good_request, split_digits
from support.waiting import eventually

import swarm
from shards.zoo import digits_model
from swarm.errors import Unavailable

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]

KILLS = 3


@dataclass(frozen=True)
class Up:
    """`swarm up` of digits in two shards, and its ready line. temporary: where its files are."""

    command: Command
    ready: dict[str, Any]
    temporary: Path

    @property
    def url(self) -> str:
        return str(self.ready["nats"])

    @property
    def server(self) -> psutil.Process | None:
        """The command's server process; None while there is none."""
        for child in psutil.Process(self.command.process.pid).children():
            try:
                if "nats-server" in child.name() and child.status() != psutil.STATUS_ZOMBIE:
                    return child
            except psutil.NoSuchProcess:
                continue
        return None

    async def next_server(self, old: psutil.Process) -> psutil.Process:
        """The server that has followed the old one."""

        def is_new() -> bool:
            found = self.server
            return found is not None and found.pid != old.pid

        await eventually(is_new, "a new server")
        found = self.server
        assert found is not None
        return found

    async def kill_server(self) -> None:
        """Until the next one is there."""
        server = self.server
        assert server is not None
        server.kill()
        await self.next_server(server)

    async def status(self) -> dict[str, Any]:
        """What `swarm status` tells of the server; empty where it was told nothing."""
        told = await asyncio.to_thread(said, "status", "--nats", self.url, "--json")
        return dict(json.loads(told.stdout).get("server", {}))

    async def noted(self, kind: str) -> dict[str, Any]:
        """The last event of a kind that `swarm status` tells of."""
        found: list[dict[str, Any]] = []

        async def is_noted() -> bool:
            # The supervisor's word may come behind those of the nodes, which end the look.
            notes = (await self.status()).get("notes", [])
            found[:] = [note for note in notes if note["kind"] == kind]
            return bool(found)

        await eventually(is_noted, f"{kind} is told")
        return found[-1]


def up(run: Commands, temporary: Path) -> Up:
    file = run.folder / "digits.onnx"
    file.write_bytes(digits_model())
    arguments = ["up", "--model", str(file), "--stages", "2", "--no-fallback", "--json"]
    command = run.start("nodes.cli.main", *arguments, env={"TMPDIR": str(temporary)})
    return Up(command, command.ready_line(), temporary)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Up]:
    """For all tests that leave it well; SIGTERM ends it as it ends anything."""
    with commands(tmp_path_factory.mktemp("up")) as run:
        made = up(run, run.temporary)
        yield made
        made.command.signal(signal.SIGTERM)
        assert made.command.wait() == 0
        assert made.command.remaining() == []
        assert not list(made.temporary.iterdir()), "no files either"


@pytest_asyncio.fixture(loop_scope="module")
async def mesh(fleet: Up) -> AsyncIterator[swarm.Mesh]:
    """Of a client that stays through it all; before and behind, requests are answered."""
    async with swarm.connect(fleet.url) as made:
        await good_request(made)
        yield made
        await good_request(made)
        async with swarm.connect(fleet.url) as newcomer:
            await good_request(newcomer)
        names = [shard.file for shard in split_digits(stages=2).manifest.shards]
        assert await made.registry.lacking("digits", "1", names) == []


async def test_kills_of_the_server_in_a_row_lose_no_request_and_no_key(
    fleet: Up, mesh: swarm.Mesh
) -> None:
    desired = await mesh.registry.desired("digits")
    restarts = (await fleet.status())["restarts"]
    for _ in range(KILLS):
        asked = asyncio.create_task(good_request(mesh))  # while the server is away, or just back
        await fleet.kill_server()
        await asked
        await mesh.link.ready(READY)
    assert await mesh.registry.desired("digits") == desired
    note = await fleet.noted("server-restarted")
    assert (len(note["lost"]), len(note["kept"])) == (1, 1)
    status = await fleet.status()
    assert status["restarts"] == restarts + KILLS
    assert status["store"]["state"] == "fine"


async def test_a_server_that_hangs_is_killed_and_a_request_meanwhile_is_answered(
    fleet: Up, mesh: swarm.Mesh
) -> None:
    server = fleet.server
    assert server is not None
    server.suspend()
    await good_request(mesh)
    await fleet.next_server(server)
    assert "answered nothing" in fleet.command.stderr


async def test_where_its_files_are_deleted_the_fleet_goes_on_and_up_puts_its_model_back(
    fleet: Up, mesh: swarm.Mesh
) -> None:
    (directory,) = fleet.temporary.glob("swarm-nats-*")
    shutil.rmtree(directory)
    gone = await fleet.noted("store-gone")
    assert "next start" in gone["lost"][0]
    assert gone["kept"]
    # Keys may be gone already: the server reads them from its cache for some seconds only.
    await good_request(mesh)

    await fleet.kill_server()
    restored = await fleet.noted("put-back")
    assert "manifest" in restored["restored"]
    restarted = await fleet.noted("server-restarted")
    assert any("keys" in lost for lost in restarted["lost"])
    assert restarted["kept"] == []
    # A node that starts now finds all that it needs.
    node = next(p for p in fleet.command.family.values() if "nodes.cli.node" in p.cmdline())
    node.kill()


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


@pytest.mark.benchmark  # a whole story, longer than ten seconds
async def test_a_full_disk_stops_no_request_and_room_brings_everything_back(
    small_disk: Path, run: Commands
) -> None:
    fleet = up(run, small_disk)
    async with swarm.connect(fleet.url) as mesh:
        await good_request(mesh)
        filled = fill(small_disk)
        full = await fleet.noted("store-full")
        assert (full["lost"], len(full["kept"])) == ([], 2)
        second = split_digits(version="2", stages=2)
        with pytest.raises(Unavailable):
            await mesh.registry.push(second.manifest.to_json(), second.files)
        await good_request(mesh)

        await fleet.kill_server()  # it starts again on the full disk too
        await good_request(mesh)
        assert await mesh.registry.serving("digits") == "1"

        await fleet.noted("server-restarted")
        stuck = fleet.server
        assert stuck is not None
        filled.unlink()
        await eventually(lambda: "room again" in fleet.command.stderr, "the server starts anew")
        await fleet.next_server(stuck)
        await good_request(mesh)
        await mesh.registry.push(second.manifest.to_json(), second.files)
        await good_request(mesh)
    assert (await fleet.status())["store"]["state"] == "fine"
    fleet.command.signal(signal.SIGINT)
    assert fleet.command.wait() == 0
