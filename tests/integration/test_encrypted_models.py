"""An encrypted model on real nodes: it answers rightly, and its weights are on no disk."""

from __future__ import annotations

import asyncio
import mmap
from pathlib import Path

import pytest
from support.commands import Commands
from support.meshes import READY, close, digits, split_digits
from support.ports import free_port
from support.waiting import eventually

import swarm
from nodes.up.embedded_server import EmbeddedServer
from shards.manifest import write_dir

pytestmark = [pytest.mark.integration, pytest.mark.processes]
WINDOW = 32  # bytes: no other file has them by chance


def known_weights() -> list[bytes]:
    """Pieces of the weights of each stage, as their files hold them."""
    pieces = []
    for file in split_digits(stages=2).files.values():
        for at in range(len(file) // 4, len(file) - WINDOW, len(file) // 4):
            piece = file[at : at + WINDOW]
            if len(set(piece)) > WINDOW // 2:  # not a run of zeros
                pieces.append(piece)
    assert len(pieces) >= 4
    return pieces


def files_with(pieces: list[bytes], folder: Path) -> list[str]:
    """The files below a folder that hold any of these pieces."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_size:
            with (
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                if any(data.find(piece) >= 0 for piece in pieces):
                    found.append(str(path.relative_to(folder)))
    return found


@pytest.mark.benchmark
async def test_the_weights_of_an_encrypted_model_are_on_no_disk_and_its_answers_are_right(
    run: Commands, tmp_path: Path
) -> None:
    result, pieces = split_digits(stages=2), known_weights()
    source, disk = tmp_path / "source", tmp_path / "disk"
    write_dir(source, result.manifest, result.files)
    for name in ("cache", "temp", "state", "server", "config"):
        (disk / name).mkdir(parents=True)
    env = {
        "TMPDIR": str(disk / "temp"),
        "XDG_CACHE_HOME": str(disk / "cache"),
        "XDG_CONFIG_HOME": str(disk / "config"),
        "MODEL_KEY": bytes(range(32)).hex(),
    }

    async def ended(*arguments: str) -> int:
        command = run.start("nodes.cli.main", *arguments, env=env)
        return await asyncio.to_thread(command.wait, 90.0)

    async with EmbeddedServer(port=free_port(), store=disk / "server") as server:
        where = ("--nats", server.url, "--mesh")

        async def answers(mesh_name: str, *extra: str) -> None:
            node = run.start(
                *("nodes.cli.node", "--role", "fallback", "--model", "digits", "--json"),
                *(*where, mesh_name, "--state-dir", str(disk / "state"), *extra),
                env=env,
            )
            await eventually(lambda: '"ready"' in node.stdout, f"ready: {node.stderr}", READY)
            async with swarm.connect(server.url, mesh_name) as mesh:
                images, logits = digits()
                got = await mesh.infer("digits", {"image": images[:1]})
                assert close(got.outputs["logits"], logits[:1])
            node.process.terminate()
            assert await asyncio.to_thread(node.wait, 30.0) == 0

        key = ("--model-key", "env:MODEL_KEY")
        assert await ended("model", "push", str(source), *key, *where, "sealed") == 0
        cache = disk / "cache" / "swarm"
        await answers("sealed", *key)
        assert len(list((cache / "artifacts").iterdir())) == 2
        made = [file.stat().st_mtime_ns for file in (cache / "made").glob("*/*")]
        assert len(made) == 2, "what was prepared is kept"
        await answers("sealed", *key)
        assert [file.stat().st_mtime_ns for file in (cache / "made").glob("*/*")] == made
        assert files_with(pieces, disk) == []
        assert await ended("model", "push", str(source), *key, *where, "sealed") == 0, "a retry"
        # Without its key it waits, and says what it needs.
        without = run.start(
            *("nodes.cli.node", "--role", "fallback", "--model", "digits", "--json"),
            *(*where, "sealed"),
            env=env,
        )
        await eventually(lambda: "--model-key" in without.stderr, "it names the flag", READY)
        await eventually(lambda: '"waiting"' in without.stdout, "it says that it waits", READY)
        # The search finds what is there: the same model in plain.
        assert await ended("model", "push", str(source), *where, "plain") == 0
        await answers("plain")
        found = files_with(pieces, disk)
        assert any(name.startswith("cache") for name in found)
        assert any(name.startswith("server") for name in found)
