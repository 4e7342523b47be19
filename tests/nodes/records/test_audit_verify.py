"""`swarm audit verify` on a real server: it says where the stream begins, and is not fooled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.changed_streams import Kept, Operations, check, command, kept
from support.commands import Said, said
from support.waiting import GENEROUS, eventually

import swarm
from nodes.records.recording import Recording, RecordLimits
from nodes.up.embedded_cluster import EmbeddedCluster, elected
from nodes.up.embedded_server import EmbeddedServer
from swarm.link import LinkOptions, jetstream
from swarm.records.record import RecordEntry
from swarm.records.recorder import Recorder
from swarm.records.stream import ensure_audit
from swarm.records.subjects import RecordSubjects
from swarm.subjects import api

pytestmark = pytest.mark.integration

COUNT = 96


@pytest.fixture
async def mesh(url: str) -> AsyncIterator[swarm.Mesh]:
    """With an audit of 96 records."""
    async with swarm.connect(url) as client:
        recorder = Recorder(client.link, client.subjects, "n1", lambda text: None)
        running = asyncio.create_task(recorder.run())
        for number in range(COUNT):
            recorder.offer(RecordEntry("request", "robot", 1.7e9, f"r{number}", {"status": "OK"}))
        await eventually(lambda: recorder.sequence == COUNT, within=GENEROUS)
        running.cancel()
        yield client


async def verified(url: str, *words: str) -> Said:
    return await asyncio.to_thread(said, "audit", "verify", *words, "--nats", url)


async def test_what_a_narrow_limit_has_removed_is_missed_after_it_is_wide_again(
    mesh: swarm.Mesh, url: str, tmp_path: Path
) -> None:
    whole = await verified(url)
    assert (whole.code, "nothing is missing or altered\n" in whole.stdout) == (0, True)
    stream = mesh.subjects.stream_of("audit")
    await jetstream.change_stream(mesh.link, stream, {"max_msgs": 10})
    narrow = await verified(url)
    assert narrow.code == 0
    assert "nothing is missing or altered since 20" in narrow.stdout
    assert "the stream begins with message 87, stored 20" in narrow.stdout
    assert "messages 1 to 86 are gone, as its limits say" in narrow.stdout
    await jetstream.change_stream(mesh.link, stream, {"max_msgs": -1})
    purged = await verified(url)
    assert (purged.code, "nothing is missing" in purged.stdout) == (1, False)
    assert "removed: message 1: messages 1 to 86 are not in the stream any more" in purged.stderr
    assert "swarm audit verify --begin 87" in purged.stdout
    assert (await verified(url, "--begin", "87")).code == 0
    assert (await verified(url, "--begin", "86")).code == 1
    doc = json.loads((await verified(url, "--json")).stdout)
    assert (doc["good"], doc["first"], doc["by_limits"]) == (False, 87, False)
    file = tmp_path / "audit.txt"
    assert (await asyncio.to_thread(said, "audit", "export", str(file), "--nats", url)).code == 1
    assert (await verified(url, str(file))).code == 1
    assert (await verified(url, str(file), "--begin", "87")).code == 0


async def test_rubbish_in_the_stream_is_told_and_fails_nothing(mesh: swarm.Mesh, url: str) -> None:
    for data in (b"rubbish", b"{}", b"\xff" * 40):
        subject = mesh.subjects.under("audit", agent="robot")
        await mesh.link.request(subject, data, GENEROUS, from_server=True)
    told = await verified(url)
    assert told.code == 0
    assert "96 records in 1 chains: nothing is missing or altered\n" in told.stdout
    assert told.stderr.count("unreadable: message ") == 3


async def test_a_stream_that_was_emptied_has_lost_what_it_held(mesh: swarm.Mesh, url: str) -> None:
    stream = mesh.subjects.stream_of("audit")
    await jetstream.change_stream(
        mesh.link, stream, {"max_age": 200_000_000, "duplicate_window": 10**8}
    )
    await eventually(lambda: _is_empty(mesh, stream))
    await jetstream.change_stream(mesh.link, stream, {"max_age": 90 * 86_400 * 10**9})
    purged = await verified(url)
    assert (purged.code, "messages 1 to 96" in purged.stderr) == (1, True)


async def _is_empty(mesh: swarm.Mesh, stream: str) -> bool:
    info = await jetstream.call(mesh.link, api("STREAM.INFO", stream))
    return int(info["state"]["messages"]) == 0


DAY_NS = 86_400 * 10**9


async def prepare(mesh: swarm.Mesh) -> None:
    await ensure_audit(mesh.link, mesh.subjects)
    recording = Recording(mesh.link, mesh.subjects, "digits", "1", 1.0)
    await recording.start(RecordLimits())
    await recording.stop()


async def record(made: Kept) -> None:
    recording = Recording(made.link, made.mesh.subjects, "digits", "1", 1.0)
    await recording.start(RecordLimits(max_age=7200.0))
    tapped = await made.changed()
    assert all(tapped.pop(made.lane(stage)).keys() == {"republish"} for stage in (1, 2))
    await recording.stop()


def audit(made: Kept) -> str:
    return made.mesh.subjects.stream_of("audit")


def recorded(made: Kept) -> str:
    return RecordSubjects.of(made.mesh.subjects).record_stream("digits")


OPERATIONS: Operations = {
    "made again": (lambda made: ensure_audit(made.link, made.mesh.subjects), lambda made: {}),
    "audit init": (lambda made: command(made, "audit", "init"), lambda made: {}),
    "audit days": (
        lambda made: command(made, "audit", "init", "--max-days", "30"),
        lambda made: {audit(made): {"max_age": 30 * DAY_NS}},
    ),
    "audit bytes": (
        lambda made: command(made, "audit", "init", "--max-mb", "9"),
        lambda made: {audit(made): {"max_bytes": 9_000_000}},
    ),
    "record": (record, lambda made: {recorded(made): {"max_age": 7200 * 10**9}}),
}


async def test_each_change_keeps_what_it_was_not_asked_to_change() -> None:
    async with EmbeddedServer() as server, kept(server.url, 1, prepare) as made:
        await check(made, OPERATIONS)


async def test_each_change_keeps_the_copies_of_a_cluster() -> None:
    async with EmbeddedCluster(3) as cluster:
        await elected(LinkOptions(servers=cluster.url), GENEROUS)
        async with kept(cluster.url, 3, prepare) as made:
            await check(made, OPERATIONS)
