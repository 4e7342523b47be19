"""What changes the audit and recordings at the server keeps what it was not asked to change."""

from __future__ import annotations

import pytest
from support.changed_streams import Kept, Operations, check, command, kept
from support.waiting import GENEROUS

import swarm
from nodes.records.recording import Recording, RecordLimits
from nodes.up.embedded_cluster import EmbeddedCluster, elected
from nodes.up.embedded_server import EmbeddedServer
from swarm.link import LinkOptions
from swarm.records.stream import ensure_audit
from swarm.records.subjects import RecordSubjects

pytestmark = pytest.mark.integration

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
