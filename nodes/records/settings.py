"""Whether a node keeps an audit."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.settings import setting


@dataclass(frozen=True)
class AuditOptions:
    """Of a node of any role."""

    audit: bool = setting(
        "trust",
        False,
        "Record who asked what, when, with which outcome, by hashes: `swarm audit`.",
    )
