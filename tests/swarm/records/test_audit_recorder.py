"""Recording keeps nobody waiting, loses nothing in silence, and tells of a request once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from real_server import Links
from support.waiting import eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import ApiError, NotConnected
from swarm.link import Link, LinkMessage, jetstream
from swarm.records.acts import record_act
from swarm.records.chain import ChainVerdict, verify
from swarm.records.record import RecordEntry
from swarm.records.recorder import RECORDS, Recorder
from swarm.records.stream import AuditLimits, ensure_audit, extent_of, read_stream, stream_config
from swarm.records.subjects import RecordSubjects
from swarm.subjects import api

SUBJECTS = RecordSubjects("m")


@asynccontextmanager
async def recorder(link: Link, name: str, told: list[str]) -> AsyncIterator[Recorder]:
    made = Recorder(link, SUBJECTS, name, told.append)
    running = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def asked(request: str) -> RecordEntry:
    return RecordEntry("request", "robot", 1.5e9, request, {"status": "OK"})


async def judged(link: Link) -> ChainVerdict:
    extent = await extent_of(link, SUBJECTS.audit_stream)
    assert extent is not None
    stored = [(s.place, s.data) async for s in read_stream(link, SUBJECTS.audit_stream, extent)]
    return verify(stored, extent)


async def test_a_full_stream_keeps_nobody_waiting_and_what_was_lost_is_told(
    server: EmbeddedServer, links: Links
) -> None:
    link, told = await links.connect(server.url), []
    full = stream_config(SUBJECTS, AuditLimits()) | {"discard": "new", "max_msgs": 1}
    await jetstream.ensure_stream(link, full)
    async with recorder(link, "node-1", told) as made:
        for number in range(RECORDS + 10):
            made.offer(asked(f"r{number}"))
        assert made.counters.lost == 10
        assert len(told) == 1
        assert "lost" in told[0]
        await jetstream.change_stream(link, full["name"], {"max_msgs": -1})
        await eventually(lambda: made.waiting == 0, "all are written", 60.0)
        made.offer(asked("behind"))
        await made.close(RecordEntry("end", "node-1", 1.5e9))
        assert "again" in told[1]
    verdict = await judged(link)
    assert verdict.good, verdict.faults[:3]
    assert (verdict.records, verdict.lost) == (RECORDS + 2, 10)


async def test_two_recorders_of_one_request_leave_one_record_and_two_good_chains(
    server: EmbeddedServer, links: Links
) -> None:
    link = await links.connect(server.url)
    async with recorder(link, "node-1", []) as one, recorder(link, "node-2", []) as other:
        for number in range(20):
            first, second = (one, other) if number % 2 else (other, one)
            digests = {"input": {"x": np.full(8, number)}}
            first.offer(asked(f"r{number}"), digests)
            second.offer(asked(f"r{number}"), digests)
        await one.close(RecordEntry("end", "node-1", 1.5e9))
        await other.close(RecordEntry("end", "node-2", 1.5e9))
        assert one.counters.elsewhere + other.counters.elsewhere == 20
    verdict = await judged(link)
    assert verdict.good, verdict.faults
    assert verdict.records == 20 + 2


async def test_one_id_hides_no_second_question(server: EmbeddedServer, links: Links) -> None:
    link = await links.connect(server.url)
    async with recorder(link, "node-1", []) as made:
        for value in (1, 2):
            made.offer(asked("same"), {"input": {"x": np.full(8, value)}})
        await made.close(RecordEntry("end", "node-1", 1.5e9))
    assert (await judged(link)).records == 3


async def test_whoever_stores_something_beforehand_hides_no_act(
    server: EmbeddedServer, links: Links
) -> None:
    """A node's recorder is called as the node, and counts: both are known."""
    link = await links.connect(server.url)
    await ensure_audit(link, SUBJECTS)
    for number in range(1, 4):
        headers = b"NATS/1.0\r\nNats-Msg-Id: node-1/%d\r\n\r\n" % number
        await link.request(SUBJECTS.audit("x"), b"{}", 5.0, headers, from_server=True)
    async with recorder(link, "node-1", []) as made:
        made.offer(RecordEntry("act", "node-1", 1.5e9, fields={"act": "promote"}))
        await made.close(RecordEntry("end", "node-1", 1.5e9))
        assert made.counters.elsewhere == 0
    assert (await judged(link)).heads["node-1"][0] == 2


async def test_a_record_whose_answer_is_lost_with_the_connection_leaves_a_good_chain(
    server: EmbeddedServer, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, request = await links.connect(server.url), Link.request
    lost: list[str] = []

    async def loses_one_answer(self: Link, subject: str, *given: Any, **named: Any) -> LinkMessage:
        answer = await request(self, subject, *given, **named)
        if subject == SUBJECTS.audit("robot") and not lost:
            lost.append(subject)
            raise NotConnected("the connection was lost behind the record")
        return answer

    monkeypatch.setattr(Link, "request", loses_one_answer)
    async with recorder(link, "node-1", []) as made:
        for number in range(2):
            made.offer(asked(f"r{number}"))
        await made.close(RecordEntry("end", "node-1", 1.5e9))
        assert made.counters.written == 3
    verdict = await judged(link)
    assert lost
    assert verdict.good, verdict.faults
    assert verdict.records == 3


async def test_the_server_deletes_no_record(server: EmbeddedServer, links: Links) -> None:
    link = await links.connect(server.url)
    await ensure_audit(link, SUBJECTS)
    assert await record_act(link, SUBJECTS, "promote", 1.5e9, "ann", {"model": "digits"})
    with pytest.raises(ApiError, match="not permitted"):
        await jetstream.call(link, api("STREAM.MSG.DELETE", SUBJECTS.audit_stream), {"seq": 1})


async def test_acts_of_several_commands_at_once_are_one_chain(
    server: EmbeddedServer, links: Links
) -> None:
    link = await links.connect(server.url)
    assert not await record_act(link, SUBJECTS, "promote", 1.5e9, "ann", {}), "no audit is kept"
    await ensure_audit(link, SUBJECTS)
    await asyncio.gather(
        *(record_act(link, SUBJECTS, "promote", 1.5e9, "ann", {}) for _ in range(3))
    )
    verdict = await judged(link)
    assert verdict.good, verdict.faults
    assert verdict.heads["operator"][0] == 3
