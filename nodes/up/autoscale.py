"""`swarm up --autoscale MOST`: processes for stages that lack nodes come and go with the load.

The nodes tell how many each stage should have (`swarm.fleet.scaling`, the field `wanted` of their
statuses); here that becomes processes. One that goes drains first: it loses no request.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess

LOOK_EVERY = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class Move:
    """A process more (1) or less (-1) for a stage. why: for people."""

    stage: int
    by: int
    why: str


def moves(
    wanted: Mapping[int, tuple[int, str]],
    base: int,
    extra: Mapping[int, int],
    most: int,
    starting: Collection[int] = (),
) -> list[Move]:
    """What to start and what to end, one process a stage at the most. Pure.

    wanted: nodes of each stage, and why. base: nodes that each stage has in any case. extra:
    further ones, those that start included. most: of these, all stages together. starting: stages
    of which one is not ready yet: what is wanted may fall for a moment until it helps, and ends
    none."""
    found, free = [], most - sum(extra.values())
    for stage, (number, why) in sorted(wanted.items(), key=lambda row: -row[1][0]):
        has = base + extra.get(stage, 0)
        if number > has and free > 0:
            free -= 1
            found.append(Move(stage, 1, why))
        elif number < has and extra.get(stage, 0) and stage not in starting:
            found.append(Move(stage, -1, why))
    return found


def wanted_of(statuses: Iterable[Mapping[str, Any]], version: str) -> dict[int, tuple[int, str]]:
    """The nodes that each stage of a version should have, as the nodes tell; the most counts."""
    found: dict[int, tuple[int, str]] = {}
    for status in statuses:
        for row in status.get("wanted", []):
            stage, number = row["stage"], row["replicas"]
            if row["version"] == version and number > found.get(stage, (0, ""))[0]:
                nodes = max(1, row["nodes"])
                why = f"each of {nodes} computes {row['busy'] / nodes:.0%} of the time"
                found[stage] = number, why
    return found


class Autoscale:
    """`run()` looks at the mesh until cancelled. tell: hears of each move, in one line."""

    def __init__(
        self,
        local: LocalMesh,
        model: str,
        version: str,
        base: int,
        most: int,
        tell: Callable[[str], None],
        arguments: Iterable[str] = (),
    ) -> None:
        self._local = local
        self._model, self._version = model, version
        self._base, self._most = base, most
        self._tell = tell
        self._arguments = list(arguments)
        self._extra: dict[int, list[NodeProcess]] = {}
        self._leaving: list[NodeProcess] = []

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self._forget_the_ended()
            statuses = [
                status
                for node in self._local.supervisor.nodes
                if node.alive and (status := self._local.status_of(node)) is not None
            ]
            extra = {stage: len(nodes) for stage, nodes in self._extra.items()}
            wanted = wanted_of(statuses, self._version)
            starting = {
                stage for stage, nodes in self._extra.items() if not all(map(self._serves, nodes))
            }
            for move in moves(wanted, self._base, extra, self._most, starting):
                self._make(move)

    def _serves(self, node: NodeProcess) -> bool:
        return (self._local.status_of(node) or {}).get("state") == "ready"

    def _make(self, move: Move) -> None:
        nodes = self._extra.setdefault(move.stage, [])
        if move.by > 0:
            nodes.append(self._local.start(f"shard-{move.stage}", self._model, *self._arguments))
        else:
            leaving = nodes.pop()
            leaving.wanted = False
            leaving.signal(signal.SIGTERM)
            self._leaving.append(leaving)
        word = "a node more" if move.by > 0 else "a node less"
        self._tell(f"stage {move.stage}: {word} ({self._base + len(nodes)}): {move.why}")

    def _forget_the_ended(self) -> None:
        for node in [each for each in self._leaving if not each.alive]:
            self._leaving.remove(node)
            self._local.supervisor.nodes.remove(node)
