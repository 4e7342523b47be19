"""What was asked, by hashes or whole, and running it again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nodes.feature import CommandGroup, Commands, Feature, later
from nodes.records.settings import AuditOptions

if TYPE_CHECKING:
    from nodes.audit import Audit
    from nodes.connection.connection import Connection
    from swarm.link import Link
    from swarm.subjects import Subjects


def _audit(connection: Connection) -> Audit | None:
    if not connection.config.of(AuditOptions).audit:
        return None
    from nodes.records.auditing import NodeAudit  # a node that records nothing needs no audit

    return NodeAudit(connection)


async def _note(
    link: Link, subjects: Subjects, act: str, by: str, fields: Mapping[str, Any]
) -> bool:
    from swarm.records.acts import record_act

    return await record_act(link, subjects, act, time.time(), by, fields)


COMMANDS: Commands = {
    "Look back": {
        "record": "nodes.records.commands.record:record",
        "replay": "nodes.records.commands.replay:replay",
    },
    "Trust": {
        "audit": CommandGroup(
            "Who asked what, with which outcome; was the record changed?",
            {
                "Commands": {
                    "init": "nodes.records.commands.audit:init",
                    "tail": "nodes.records.commands.audit:tail",
                    "export": "nodes.records.commands.audit:export",
                    "verify": "nodes.records.commands.audit:verify",
                }
            },
        )
    },
}
FEATURE = Feature(
    "records",
    tells=["audit"],
    settings=[AuditOptions],
    audit=_audit,
    note=_note,
    commands=COMMANDS,
    options={"up": ["nodes.records.up:UpAuditOptions"]},
    companions=later("nodes.records.up:companions"),
    samples=later("nodes.records.commands.live_samples:live_samples"),
)
