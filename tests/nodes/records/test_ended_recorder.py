"""A recorder beside a connection that has ended."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path

from support.ended import end_idle, node_of, none_turn, serve_digits

import swarm
from nodes.records.settings import AuditOptions
from swarm.records.record import RecordEntry
from swarm.records.recorder import Recorder


def recorded(client: swarm.Mesh, _: Path) -> Awaitable[None]:
    recorder = Recorder(client.link, client.subjects, "n1", lambda text: None)
    recorder.offer(RecordEntry("act", "a", 1.0))
    return recorder.run()


async def test_a_recorder_does_not_turn(tmp_path: Path) -> None:
    await none_turn({"audit": recorded}, tmp_path)


async def test_a_node_with_an_audit_does_not_turn(url: str) -> None:
    async with swarm.connect(url) as client:
        await serve_digits(client)
        others = [node_of(role, url) for role in ("fallback", "gateway")]
        await end_idle([node_of("shard-1", url, AuditOptions(audit=True)), *others])
