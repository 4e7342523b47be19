"""What was asked, by hashes or whole, and running it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodes.feature import Feature
from nodes.records.settings import AuditOptions

if TYPE_CHECKING:
    from nodes.audit import Audit
    from nodes.connection.connection import Connection


def _audit(connection: Connection) -> Audit | None:
    if not connection.config.of(AuditOptions).audit:
        return None
    from nodes.records.auditing import NodeAudit  # a node that records nothing needs no audit

    return NodeAudit(connection)


FEATURE = Feature("records", settings=[AuditOptions], audit=_audit)
