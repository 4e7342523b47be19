"""A node's refusals on record: whom, why, from where; and of a flood some, with a count."""

from __future__ import annotations

from typing import Any

import pytest

from nodes.config import NodeConfig
from nodes.connection.connection import Connection
from nodes.records.auditing import BURST, NodeAudit
from swarm.errors import PermissionDenied, Unauthenticated
from swarm.records.record import RecordEntry

PEER = "10.0.0.7"


@pytest.fixture
async def audit() -> NodeAudit:
    return NodeAudit(Connection(NodeConfig("gateway", shm=False, no_cache=True)))


@pytest.fixture
def records(audit: NodeAudit, monkeypatch: pytest.MonkeyPatch) -> list[RecordEntry]:
    found: list[RecordEntry] = []

    def offer(entry: RecordEntry, digests: Any = None) -> None:
        found.append(entry)

    monkeypatch.setattr(audit.recorder, "offer", offer)
    return found


async def test_a_refusal_is_on_record_with_its_agent(
    audit: NodeAudit, records: list[RecordEntry]
) -> None:
    audit.refused("camera-1", PermissionDenied("not this model"), PEER)
    audit.refused("", Unauthenticated("no key"), "not an address")
    told = [(r.agent, r.fields["status"], r.fields["peer"]) for r in records]
    assert told == [("camera-1", "PERMISSION_DENIED", PEER), ("-", "UNAUTHENTICATED", "")]


async def test_a_flood_of_refusals_is_counted(audit: NodeAudit, records: list[RecordEntry]) -> None:
    for _ in range(int(BURST) + 200):
        audit.refused("", Unauthenticated("no key"), PEER)
    assert BURST <= len(records) < BURST + 100
