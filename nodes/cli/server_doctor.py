"""What is wrong with what a mesh keeps at its servers, for `swarm doctor --nats URL`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import swarm
from nodes.cli.options import Target
from nodes.cli.with_mesh import client_of
from nodes.versions.upkeep import Flaw, stores_of, upkeep_by_operator
from swarm.fleet.coverage import stages_told
from swarm.fleet.service import FleetWatch
from swarm.link import jetstream
from swarm.link.kept_stream import MISSING


@dataclass(frozen=True, slots=True)
class KeptStreams:
    """flaws: what is wrong. memory, files: bytes that the account's streams have set aside."""

    flaws: Sequence[Flaw] = ()
    memory: int = 0
    files: int = 0

    def document(self) -> dict[str, Any]:
        """Fields of a command's JSON."""
        aside = {"memory_bytes": self.memory, "file_bytes": self.files}
        return {"flaws": [flaw.document() for flaw in self.flaws], "set_aside": aside}

    @property
    def line(self) -> str:
        """For people."""
        memory, files = self.memory / 1e6, self.files / 1e6
        return f"set aside by streams: {memory:.0f} MB of memory, {files:.0f} MB of files"


def streams_of(client: swarm.Mesh) -> set[str]:
    """Those that the first push makes."""
    return {each.stream for each in stores_of(client)}


async def nodes_serve(client: swarm.Mesh) -> bool:
    """Whether a node that lives speaks of a stage: then models were pushed, and what is missing was
    lost. A new mesh has no such node."""
    async with FleetWatch(client.link, client.subjects, events=0) as watch:
        await watch.hear_all()
        return bool(stages_told(watch.view.living(time.monotonic())))


async def look_at_mesh(target: Target) -> KeptStreams:
    """Look, and mend nothing. Raises `SwarmError`."""
    async with client_of(target, signs=False) as client:
        models = dict.fromkeys(model for model, _ in await client.registry.models())
        left = (await upkeep_by_operator(client, models, mends=False)).left
        if {flaw.stream for flaw in left if flaw.text == MISSING} >= streams_of(client):
            left = left if await nodes_serve(client) else []  # nothing was ever pushed here
        info = await jetstream.call(client.link, "$JS.API.INFO")
        aside = [int(info.get(f"reserved_{where}", 0)) for where in ("memory", "storage")]
        return KeptStreams(left, *aside)
