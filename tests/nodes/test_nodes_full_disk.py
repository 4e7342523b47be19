"""A server whose disk was full stores nothing more where a message met that, also once there is
room: the mesh says which server, and what to do, until it was started again."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import swarm
from nodes.up.embedded_server import EmbeddedServer
from nodes.versions.upkeep import common_of, store_flaws, upkeep_by_operator
from swarm.link import jetstream

pytestmark = pytest.mark.integration


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """8 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small disk needs root and the right to mount one")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
async def server(small_disk: Path) -> AsyncIterator[EmbeddedServer]:
    async with EmbeddedServer(store=small_disk / "store") as running:
        yield running


def fill(disk: Path) -> Path:
    path = disk / "fill"
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)) == 4096:
                pass
        except OSError:
            return path
    return path


async def test_a_server_whose_disk_was_full_is_named_with_what_to_do_until_it_starts_again(
    server: EmbeddedServer, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swarm.link.kept_stream.PROBE_WITHIN", 0.3)
    async with swarm.connect(server.url, shm=False) as mesh:
        await mesh.registry.prepare()
        dead = common_of(mesh)[0]
        await dead.mend()
        assert await store_flaws(mesh, common_of(mesh)) == []
        filler = fill(small_disk)
        (full,) = await store_flaws(mesh, common_of(mesh))
        filler.unlink()
        (after,) = await store_flaws(mesh, common_of(mesh))
        for flaw in (full, after):
            assert flaw.stream == dead.stream, "nothing else was written to"
            assert "restart" in flaw.mend
        assert server.name in after.text
        found = await upkeep_by_operator(mesh, [], mends=False)
        assert after in found.left, "as `swarm doctor --nats` does"
        await jetstream.kv_put(mesh.link, mesh.subjects.config_bucket, "k", b"v")
        await server.kill()
        await server.start()
        await mesh.link.ready()
        assert await store_flaws(mesh, common_of(mesh)) == []
