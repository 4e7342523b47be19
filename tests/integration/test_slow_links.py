"""A stage behind a slow link gets each message once, and answers all."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from meshes import READY, ROOT, environment, until

from nodes.bench.links.network import SlowLink, slow_link, unavailable
from nodes.local.mesh import LocalMesh, local_mesh, push
from shards.manifest import CodecError
from shards.split.split import split
from shards.zoo.builders import chain, chain_cuts, chain_expected
from swarm.link import jetstream
from swarm.services.embedded import EmbeddedServer
from swarm.subjects import api

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]

FEATURES = 154_000  # bytes of a cut, as of a small detector's
REQUESTS = 16


@pytest.mark.parametrize(("mbit", "every"), [(20, 0.3), (5, 0.6)])
async def test_a_stage_behind_a_slow_link_gets_each_message_once(
    mbit: float, every: float, tmp_path: Path
) -> None:
    result = split(
        chain(2, FEATURES), name="chain", cuts=chain_cuts(2), bandwidth=1e6, profile=False
    )
    with slow_link(mbit, round_trip=0.010) as link:
        server = EmbeddedServer(host=link.address)
        await server.start()
        try:
            async with local_mesh(url=server.url, shm=False) as local:
                await push(local, result.manifest.to_json(), result.files)
                suspected: list[str] = []
                local.mesh.link.subscribe(
                    local.mesh.subjects.event("suspected"),
                    lambda message: suspected.append(bytes(message.data).decode()),
                )
                local.start("shard-1", "chain")
                with far_stage(local, link, tmp_path / "far.log"):
                    await local.ready(READY)
                    await until(lambda: far_is_ready(local), READY, "the far stage is ready")
                    await ask_steadily(local, link, every)
                    wait = await ack_wait(local)
                    # Twice a message's time: one is on its way, its answer on its way back.
                    assert wait > 2 * FEATURES / (mbit * 125_000)
                    assert suspected == []
        finally:
            await server.stop()


async def test_behind_a_slow_link_the_codec_is_used_that_the_owner_allowed(tmp_path: Path) -> None:
    result = split(
        chain(2, FEATURES), name="chain", cuts=chain_cuts(2), bandwidth=1e6, profile=False
    )
    i8 = {"i8": CodecError(0.01, 0.001, 1)}
    allowed = replace(result.manifest, codecs=i8, result_codecs=i8)
    with slow_link(20, round_trip=0.010) as link:
        server = EmbeddedServer(host=link.address)
        await server.start()
        try:
            async with local_mesh(url=server.url, shm=False) as local:
                await push(local, allowed.to_json(), result.files)
                local.start("shard-1", "chain")
                with far_stage(local, link, tmp_path / "far.log"):
                    await local.ready(READY)
                    await until(lambda: far_is_ready(local), READY, "the far stage is ready")
                    feed = {"features": np.random.default_rng(7).random((1, FEATURES // 4), "f4")}
                    exact = chain_expected(feed["features"], 2)

                    async def is_coded() -> bool:
                        answer = await local.mesh.infer("chain", feed, 10.0)
                        near, far = answer.hops
                        assert near.codec == ""  # a fast link is lossless
                        if not (far.codec and answer.codec):
                            assert (
                                far.codec
                                or answer.codec
                                or np.array_equal(answer.outputs["result"], exact)
                            )
                            return False
                        assert {far.codec, answer.codec} <= {"i8", "i8-zstd"}
                        apart = np.abs(answer.outputs["result"] - exact).max()
                        assert 0 < apart <= 0.02 * np.abs(exact).max()
                        return True

                    async with asyncio.timeout(READY):
                        while not await is_coded():
                            pass  # each request takes its time on the link
                    before = link.bytes_down()
                    for _ in range(5):
                        assert await is_coded()
                    assert link.bytes_down() - before <= 5 * FEATURES / 3.5
        finally:
            await server.stop()


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


async def test_what_waits_for_its_turn_on_a_slow_link_is_not_sent_again(tmp_path: Path) -> None:
    """Twelve requests at once take the link 6 s: more than the share of their budgets after which
    an answer is missing, and more than a PubAck may take."""
    count, size, budget = 12, 2 * FEATURES, 12.0
    result = split(chain(1, size), name="chain", cuts=chain_cuts(1), bandwidth=1e6, profile=False)
    with slow_link(5, round_trip=0.010) as link:
        server = EmbeddedServer(host=link.address)
        await server.start()
        try:
            async with local_mesh(url=server.url, shm=False) as local:
                await push(local, result.manifest.to_json(), result.files)
                local.start("shard-1", "chain")
                await local.ready(READY)
                words = [sys.executable, "-c", ASKER, server.url, local.name]
                asker = await asyncio.create_subprocess_exec(
                    *link.inside,
                    *words,
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
        finally:
            await server.stop()


async def test_a_live_edge_drops_the_oldest_behind_a_slow_link_and_its_answers_stay_fresh(
    tmp_path: Path,
) -> None:
    """Thirty captures a second of 154 KB, where the link carries sixteen."""
    result = split(
        chain(1, FEATURES), name="chain", cuts=chain_cuts(1), bandwidth=1e6, profile=False
    )
    np.savez(tmp_path / "captures.npz", features=np.ones((3, FEATURES // 4), np.float32))
    with slow_link(20, round_trip=0.010) as link:
        server = EmbeddedServer(host=link.address)
        await server.start()
        try:
            async with local_mesh(url=server.url, shm=False) as local:
                await push(local, result.manifest.to_json(), result.files)
                local.start("shard-1", "chain")
                await local.ready(READY)
                log = tmp_path / "edge.log"
                edge = ["--source", str(tmp_path / "captures.npz"), "--rate", "30"]
                with far_node(local, link, "edge", log, *edge):
                    await until(lambda: len(answers(log)) >= 60, READY, "the edge asks")
                assert {answer["status"] for answer in answers(log)} == {"OK"}
                ages = sorted(answer["age_ms"] for answer in answers(log)[20:])
                # Where nothing is bounded, eight that wait and eight on their way take 1 s.
                assert ages[len(ages) // 2] < 600
                assert "dropped so far, the oldest first" in log.read_text()
                assert any(s["edge"]["dropped"] > 0 for s in local.statuses.values() if "edge" in s)
        finally:
            await server.stop()


def answers(log: Path) -> list[dict[str, Any]]:
    """The result lines of an edge, without those that are being written."""
    lines = log.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line[:1] == "{" and line[-1:] == "\n"]


@contextmanager
def far_stage(local: LocalMesh, link: SlowLink, log: Path) -> Iterator[None]:
    """The second stage, on the far side of the link."""
    with far_node(local, link, "shard-2", log):
        yield


@contextmanager
def far_node(local: LocalMesh, link: SlowLink, role: str, log: Path, *more: str) -> Iterator[None]:
    arguments = ["--role", role, "--model", "chain", "--nats", local.url, "--no-shm"]
    arguments += ["--trust", local.trusted, *more]
    command = [*link.inside, sys.executable, "-m", "nodes.cli.node", *arguments]
    with log.open("wb") as sink:
        node = subprocess.Popen(command, stdout=sink, stderr=sink, cwd=ROOT, env=environment())
    try:
        yield
    finally:
        node.terminate()
        assert node.wait(15) == 0, log.read_text()


def far_is_ready(local: LocalMesh) -> bool:
    statuses = local.statuses.values()
    return any(status["role"] == "shard-2" and status["state"] == "ready" for status in statuses)


async def ask_steadily(local: LocalMesh, link: SlowLink, every: float) -> None:
    """All are answered, rightly, and the link carries little more than their features."""
    random = np.random.default_rng(5)
    feeds = [random.random((1, FEATURES // 4), np.float32) for _ in range(REQUESTS)]
    before = link.bytes_arrived()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for feed in feeds:
            tasks.append(group.create_task(local.mesh.infer("chain", {"features": feed}, 10.0)))
            await asyncio.sleep(every)
    for feed, task in zip(feeds, tasks, strict=True):
        answer = task.result()
        assert np.array_equal(answer.outputs["result"], chain_expected(feed, 2))
        assert answer.attempt == 1
    # Not those that were sent: a bottleneck drops what a starved test sends in bursts.
    assert link.bytes_arrived() - before <= 1.15 * REQUESTS * FEATURES


async def ack_wait(local: LocalMesh) -> float:
    """Of the far stage's lane, in seconds, as the server has it."""
    subjects = local.mesh.subjects
    name = api("CONSUMER.INFO", subjects.stream("chain", "1"), subjects.consumer("chain", 2))
    info = await jetstream.call(local.mesh.link, name)
    return float(info["config"]["ack_wait"]) / 1e9
