"""`swarm up --nats URL` is started again and again at one server, as a service is."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import Commands, said
from support.ports import free_port

import swarm
from nodes.up.embedded_server import EmbeddedServer
from shards.zoo import digits_lite_model, digits_model

pytestmark = [pytest.mark.integration, pytest.mark.processes]


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with EmbeddedServer() as server:
        yield server.url


async def up(run: Commands, model: Path, url: str, *extra: str) -> tuple[dict[str, Any], str]:
    """Start `swarm up` until it is ready, and end it: its document, and what it said."""
    words = ["--name", "m", "--stages", "2", "--no-fallback", "--nats", url, "--json", *extra]

    def story() -> tuple[dict[str, Any], str]:
        command = run.start("nodes.cli.main", "up", "--model", str(model), *words)
        ready = command.ready_line()
        command.signal(signal.SIGINT)
        assert command.wait() == 0
        return ready, command.stderr

    return await asyncio.to_thread(story)


async def manifest(url: str, version: str) -> bytes:
    async with swarm.connect(url) as mesh:
        return await mesh.registry.manifest("m", version)


@pytest.mark.benchmark
async def test_the_same_file_is_the_same_version_at_every_start_and_another_one_the_next(
    run: Commands, url: str, tmp_path: Path
) -> None:
    file, other = tmp_path / "a.onnx", tmp_path / "b.onnx"
    file.write_bytes(digits_model())
    other.write_bytes(digits_lite_model())
    ready, told = await up(run, file, url)
    assert ready["version"] == "1"
    first = await manifest(url, "1")
    ready, told = await up(run, file, url)
    assert ready["version"] == "1"
    assert "m@1 is in the mesh" in told
    ready, _ = await up(run, file, url, "--version", "1")
    assert ready["version"] == "1"
    assert await manifest(url, "1") == first, "it is not measured anew"
    ready, told = await up(run, other, url)
    assert ready["version"] == "2"
    assert "a new version, m@2: the mesh has 1 of another file" in told
    ready, _ = await up(run, file, url)
    assert ready["version"] == "1", "the mesh has that one still"
    async with swarm.connect(url) as mesh:
        assert await mesh.registry.models() == [("m", "1"), ("m", "2")]
        assert await mesh.registry.serving("m") == "1"


@pytest.mark.benchmark
async def test_up_serves_at_the_port_that_it_was_given(run: Commands, tmp_path: Path) -> None:
    file, port = tmp_path / "a.onnx", free_port()
    file.write_bytes(digits_model())
    ready, _ = await up(run, file, "", "--port", str(port))
    assert ready["nats"] == f"nats://127.0.0.1:{port}"


def test_a_port_that_is_taken_or_not_its_own_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.onnx"
    file.write_bytes(digits_model())
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        start = ("up", "--model", str(file), "--stages", "1", "--port", port)
        taken = said(*start)
        assert taken.code
        assert f"--port {port}: Address already in use: give another port" in taken.stderr
        for more in (("--nats", f"nats://127.0.0.1:{port}"), ("--servers", "3")):
            wrong = said(*start, *more)
            assert wrong.code
            assert "--port is for" in wrong.stderr
