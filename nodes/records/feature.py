"""What was asked, by hashes or whole, and running it again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nodes.feature import CommandGroup, Commands, Feature, Given
from nodes.records.settings import AuditOptions

if TYPE_CHECKING:
    import numpy as np

    from nodes.audit import Audit
    from nodes.connection.connection import Connection
    from nodes.up.companion import Companion
    from swarm.link import Link
    from swarm.mesh import Mesh
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


def _options() -> Mapping[str, Sequence[type]]:
    from nodes.records.up import UpAuditOptions

    return {"up": [UpAuditOptions]}


def _companions(given: Given) -> list[Companion]:
    from nodes.records.up import companions

    return companions(given)


async def _samples(client: Mesh, model: str, count: int, seconds: float) -> dict[str, np.ndarray]:
    from nodes.records.commands.live_samples import live_samples

    return await live_samples(client, model, count, seconds)


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
    settings=[AuditOptions],
    audit=_audit,
    note=_note,
    commands=COMMANDS,
    options=_options,
    companions=_companions,
    samples=_samples,
)
