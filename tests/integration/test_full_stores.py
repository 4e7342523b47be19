"""A server with little room: what finds none is refused as a full lane, and nothing is buried."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from support.meshes import READY, mesh_of
from support.ports import free_port
from support.waiting import eventually
from zoo.builders import chain, chain_cuts, chain_expected

import swarm
from nodes.up.mesh import LocalMesh
from shards.split.split import split
from swarm.link import jetstream
from swarm.subjects import api

pytestmark = [pytest.mark.integration, pytest.mark.processes, pytest.mark.benchmark]

FEATURES = 800 << 10  # bytes of an input, and of each cut
STAGES, IN_FLIGHT, ROUNDS = 3, 64, 3


@asynccontextmanager
async def server(folder: Path, storage: str, room: str) -> AsyncIterator[str]:
    """The URL of a server with so much room for lanes of this storage."""
    port = free_port()
    memory, file = (room, "1GB") if storage == "memory" else ("1GB", room)
    settings = folder / "nats.conf"
    settings.write_text(
        f"port: {port}\nhost: 127.0.0.1\nmax_payload: 4MB\nmax_pending: 128MB\n"
        f"jetstream {{ store_dir: {json.dumps(str(folder / 'js'))}, "
        f"max_memory_store: {memory}, max_file_store: {file} }}\n"
    )
    process = await asyncio.create_subprocess_exec(
        "nats-server", "-c", str(settings), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def streams(local: LocalMesh) -> dict[str, dict[str, int]]:
    """The bytes that each stream may hold, and its messages."""
    listed = await jetstream.call(local.mesh.link, api("STREAM.LIST"), {})
    return {
        info["config"]["name"]: {
            "most": info["config"]["max_bytes"],
            "messages": info["state"]["messages"],
        }
        for info in listed["streams"]
    }


@pytest.mark.parametrize(
    ("storage", "room"),
    [("memory", "12MB"), ("memory", "24MB"), ("memory", "1GB"), ("file", "80MB"), ("file", "1GB")],
)
async def test_what_finds_no_room_is_refused_and_all_else_is_answered(
    tmp_path: Path, storage: str, room: str
) -> None:
    result = split(
        chain(STAGES, FEATURES),
        name="chain",
        cuts=chain_cuts(STAGES),
        bandwidth=1e6,
        profile=False,
    )
    roles = [f"shard-{stage}" for stage in range(1, STAGES + 1)]
    flags = ("--stored", "--storage", storage)
    async with (
        server(tmp_path, storage, room) as url,
        mesh_of(result, *roles, flags=flags, url=url, shm=False) as local,
    ):
        lanes = {
            name: each["most"] for name, each in (await streams(local)).items() if "=stage" in name
        }
        assert len(lanes) == STAGES
        assert min(lanes.values()) > 0, "no lane goes without its bound"
        feed = np.random.default_rng(1).random((1, FEATURES // 4), np.float32)
        wanted = chain_expected(feed, STAGES)

        async def ask(budget: float) -> str:
            try:
                answer = await local.mesh.infer("chain", {"features": feed}, budget)
            except swarm.ResourceExhausted:
                return "refused"
            assert np.array_equal(answer.outputs["result"], wanted)
            return "answered"

        least = min(IN_FLIGHT, min(lanes.values()) // (FEATURES + 4096))
        for _ in range(ROUNDS):
            ends = Counter(await asyncio.gather(*(ask(20.0) for _ in range(IN_FLIGHT))))
            assert ends["answered"] + ends["refused"] == IN_FLIGHT
            assert ends["answered"] >= least, "what the lanes hold is answered"
            await eventually(lambda: ask(5.0), "the lanes are free again", READY)
        dead = (await streams(local)).get(local.mesh.subjects.dead_stream, {"messages": 0})
        assert dead["messages"] == 0
