"""`swarm up --audit`: what is asked is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodes.cli.command import option
from nodes.feature import Given
from nodes.up.companion import Companion

if TYPE_CHECKING:
    from nodes.up.mesh import LocalMesh


@dataclass(frozen=True)
class UpAuditOptions:
    """Of `swarm up`."""

    audit: bool = option(False, "Record who asked what, with which outcome.")


class UpAudit(Companion):
    async def prepare(self, local: LocalMesh) -> list[str]:
        from swarm.records.stream import ensure_audit  # the options need none of it

        await ensure_audit(local.mesh.link, local.mesh.subjects)
        return ["--audit"]


def companions(given: Given) -> list[Companion]:
    options = given.of(UpAuditOptions)
    return [UpAudit()] if options is not None and options.audit else []
