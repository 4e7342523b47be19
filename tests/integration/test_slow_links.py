"""A stage behind a slow link gets each message once, and answers all."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import ROOT, environment
from support.meshes import READY, mesh_of
from support.slow_link import SlowLink, slow_link, unavailable
from support.waiting import eventually
from zoo.builders import chain, chain_cuts, chain_expected

from nodes.up.embedded_server import EmbeddedServer
from nodes.up.mesh import LocalMesh, push
from shards.manifest import CodecError
from shards.split.split import split
from swarm.link import jetstream
from swarm.subjects import api

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]

FEATURES = 154_000  # bytes of a cut, as of a small detector's
REQUESTS = 16


@asynccontextmanager
async def behind(
    mbit: float, stages: int, feature_bytes: int = FEATURES, **codecs: Any
) -> AsyncIterator[tuple[LocalMesh, SlowLink]]:
    """A chain pushed to a mesh, its first stage on this side of a slow link. codecs: of the
    manifest."""
    cuts = chain_cuts(stages)
    result = split(
        chain(stages, feature_bytes), name="chain", cuts=cuts, bandwidth=1e6, profile=False
    )
    with slow_link(mbit, round_trip=0.010) as link:
        async with (
            EmbeddedServer(host=link.address) as server,
            mesh_of(url=server.url, shm=False) as local,
        ):
            await push(local, replace(result.manifest, **codecs).to_json(), result.files)
            local.start("shard-1", "chain")
            await local.ready(READY)
            yield local, link


async def test_a_stage_behind_a_slow_link_gets_each_message_once(tmp_path: Path) -> None:
    mbit = 20.0
    random = np.random.default_rng(5)
    feeds = [random.random((1, FEATURES // 4), np.float32) for _ in range(REQUESTS)]
    async with behind(mbit, 2) as (local, link), far_stage(local, link, tmp_path / "far.log"):
        before = link.bytes_arrived()
        waiting = iter(feeds)

        async def ask() -> None:
            for feed in waiting:
                answer = await local.mesh.infer("chain", {"features": feed}, 30.0)
                assert np.array_equal(answer.outputs["result"], chain_expected(feed, 2))
                assert answer.attempt == 1

        await asyncio.gather(ask(), ask())  # one is on its way, an answer on its way back
        # Not those that were sent: a bottleneck drops what a starved test sends in bursts.
        assert link.bytes_arrived() - before <= 1.15 * REQUESTS * FEATURES
        assert await ack_wait(local) > 2 * FEATURES / (mbit * 125_000)


@pytest.mark.benchmark  # a whole story, longer than ten seconds
async def test_behind_a_slow_link_the_codec_is_used_that_the_owner_allowed(tmp_path: Path) -> None:
    i8 = {"i8": CodecError(0.01, 0.001, 1)}
    feed = {"features": np.random.default_rng(7).random((1, FEATURES // 4), "f4")}
    exact = chain_expected(feed["features"], 2)
    async with (
        behind(20, 2, codecs=i8, result_codecs=i8) as (local, link),
        far_stage(local, link, tmp_path / "far.log"),
    ):

        async def is_coded() -> bool:
            answer = await local.mesh.infer("chain", feed, 30.0)
            near, far = answer.hops
            assert near.codec == ""  # a fast link is lossless
            if not (far.codec and answer.codec):
                is_exact = np.array_equal(answer.outputs["result"], exact)
                assert far.codec or answer.codec or is_exact
                return False
            assert {far.codec, answer.codec} <= {"i8", "i8-zstd"}
            apart = np.abs(answer.outputs["result"] - exact).max()
            assert 0 < apart <= 0.02 * np.abs(exact).max()
            return True

        await eventually(is_coded, "both ways are coded", READY)
        before = link.bytes_down()
        for _ in range(5):
            assert await is_coded()
        assert link.bytes_down() - before <= 5 * FEATURES / 3.5


ASKER = """
import asyncio, json, sys
import numpy as np
import swarm

async def main(url, mesh, size, count, budget):
    feed = {"features": np.ones((1, int(size) // 4), "f4")}
    async with swarm.connect(url, mesh, shm=False, codec="none") as client:
        for _ in range(2):
            await client.infer("chain", feed, 30.0)
        print("known", flush=True)
        sys.stdin.readline()
        asked = [client.infer("chain", feed, float(budget)) for _ in range(int(count))]
        print(json.dumps([answer.attempt for answer in await asyncio.gather(*asked)]), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.benchmark  # a whole story, longer than ten seconds
async def test_what_waits_for_its_turn_on_a_slow_link_is_not_sent_again() -> None:
    """Twelve requests at once take the link 6 s: more than the share of their budgets after which
    an answer is missing, and more than a PubAck may take."""
    count, size, budget = 12, 2 * FEATURES, 12.0
    async with behind(5, 1, size) as (local, link):
        asker = await asyncio.create_subprocess_exec(
            *link.inside,
            *(sys.executable, "-c", ASKER, local.url, local.name),
            *map(str, (size, count, budget)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=environment(),
        )
        try:
            async with asyncio.timeout(READY):
                assert await asker.stdout.readline() == b"known\n"
                before = link.bytes_up()
                asker.stdin.write(b"\n")
                attempts = json.loads(await asker.stdout.readline())
        finally:
            if asker.returncode is None:
                asker.kill()
            await asker.wait()
        assert attempts == [1] * count
        assert link.bytes_up() - before <= 1.15 * count * size


@pytest.mark.benchmark  # a whole story, longer than ten seconds
async def test_a_live_edge_drops_the_oldest_behind_a_slow_link_and_goes_on(tmp_path: Path) -> None:
    """Thirty captures a second of 154 KB, where the link carries sixteen."""
    np.savez(tmp_path / "captures.npz", features=np.ones((3, FEATURES // 4), np.float32))
    log = tmp_path / "edge.log"
    source = ["--source", str(tmp_path / "captures.npz"), "--rate", "30", "--budget", "30000"]

    def dropped(local: LocalMesh) -> bool:
        return any(s["edge"]["dropped"] > 0 for s in local.statuses.values() if "edge" in s)

    async with behind(20, 1) as (local, link):
        with far_node(local, link, "edge", log, *source):
            await eventually(lambda: dropped(local), "captures are dropped", READY)
            before = len(answers(log))
            await eventually(lambda: len(answers(log)) > before + 20, "the edge goes on", READY)
        assert {answer["status"] for answer in answers(log)} == {"OK"}
        assert "dropped so far, the oldest first" in log.read_text()


def answers(log: Path) -> list[dict[str, Any]]:
    """The result lines of an edge, without those that are being written."""
    lines = log.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line[:1] == "{" and line[-1:] == "\n"]


@asynccontextmanager
async def far_stage(local: LocalMesh, link: SlowLink, log: Path) -> AsyncIterator[None]:
    """The second stage, on the far side of the link, ready."""
    with far_node(local, link, "shard-2", log):
        await eventually(lambda: far_is_ready(local), "the far stage is ready", READY)
        yield


@contextmanager
def far_node(local: LocalMesh, link: SlowLink, role: str, log: Path, *more: str) -> Iterator[None]:
    arguments = ["--role", role, "--model", "chain", "--nats", local.url, "--no-shm"]
    arguments += ["--mesh", local.name]
    arguments += ["--trust", local.trusted, *more]
    command = [*link.inside, sys.executable, "-m", "nodes.cli.node", *arguments]
    with log.open("wb") as sink:
        node = subprocess.Popen(command, stdout=sink, stderr=sink, cwd=ROOT, env=environment())
    try:
        yield
    finally:
        node.terminate()
        assert node.wait(30) == 0, log.read_text()


def far_is_ready(local: LocalMesh) -> bool:
    statuses = local.statuses.values()
    return any(status["role"] == "shard-2" and status["state"] == "ready" for status in statuses)


async def ack_wait(local: LocalMesh) -> float:
    """Of the far stage's lane, in seconds, as the server has it."""
    subjects = local.mesh.subjects
    name = api("CONSUMER.INFO", subjects.stream("chain", "1", 2), subjects.consumer("chain", 2))
    info = await jetstream.call(local.mesh.link, name)
    return float(info["config"]["ack_wait"]) / 1e9
