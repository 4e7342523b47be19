"""`swarm up --autoscale MOST`: processes for stages that lack nodes come and go with the load.

The nodes tell how many each stage should have (`swarm.fleet.scaling`, the field `wanted` of their
statuses); here that becomes processes. One that goes drains first: it loses no request.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nodes.up.mesh import BROKEN_FROM, LocalMesh
from nodes.up.supervisor import STOP_TIMEOUT, NodeProcess

LOOK_EVERY = 1.0  # seconds
TRY_AGAIN_AFTER = 60.0  # seconds, for a stage whose further process did not become ready
UNTOLD_FOR = 30.0  # seconds for which nobody tells of a stage until its further processes end
FIELDS = ("stage", "replicas", "nodes", "busy")  # of a row of `wanted`
BURNS = "the objective burns, and "


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


def wanted_of(statuses: Iterable[Mapping[str, Any]], model: str) -> dict[int, tuple[int, str]]:
    """The nodes that each stage of a model should have, as the nodes tell; the most counts. A
    process serves its stage of all versions, so another version may be promoted meanwhile."""
    found: dict[int, tuple[int, str]] = {}
    for status in statuses:
        rows = status.get("wanted", [])
        for row in rows if isinstance(rows, list) else []:
            if not isinstance(row, Mapping) or row.get("model") != model:
                continue
            stage, number, told, busy = (row.get(name) for name in FIELDS)
            if not (type(stage) is type(number) is type(told) is int):
                continue  # a status is whatever a member of the mesh writes
            if isinstance(busy, int | float) and number > found.get(stage, (0, ""))[0]:
                nodes = max(1, told)
                why = f"each of {nodes} computes {busy / nodes:.0%} of the time"
                found[stage] = number, f"{BURNS if row.get('burns') is True else ''}{why}"
    return found


class Autoscale:
    """`run()` looks at the mesh until cancelled. tell: hears of each move, in one line."""

    def __init__(
        self,
        local: LocalMesh,
        model: str,
        base: int,
        most: int,
        tell: Callable[[str], None],
        arguments: Iterable[str] = (),
    ) -> None:
        self._local = local
        self._model = model
        self._base, self._most = base, most
        self._tell = tell
        self._arguments = list(arguments)
        self._extra: dict[int, list[NodeProcess]] = {}
        self._leaving: list[tuple[NodeProcess, float]] = []  # with when they are killed
        self._untold: dict[int, float] = {}  # stages of further processes, and since when
        self._broken: dict[int, float] = {}  # stages, and when they are tried again

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            now = time.monotonic()
            self._forget_the_ended(now)
            self._end_the_broken(now)
            statuses = [
                status
                for node in self._local.supervisor.nodes
                if node.alive and (status := self._local.status_of(node)) is not None
            ]
            extra = {stage: len(nodes) for stage, nodes in self._extra.items()}
            wanted = wanted_of(statuses, self._model)
            starting = {
                stage for stage, nodes in self._extra.items() if not all(map(self._serves, nodes))
            }
            gone = self._gone(wanted, now)
            wanted |= dict.fromkeys(gone, (0, "no version that serves has it any more"))
            starting -= gone
            for move in moves(wanted, self._base, extra, self._most, starting):
                if move.by < 0 or move.stage not in self._broken:
                    self._make(move)

    def _gone(self, wanted: Collection[int], now: float) -> set[int]:
        """The stages that nobody has told of for long, though others are told of: the version that
        serves now lacks them."""
        untold = [s for s, nodes in self._extra.items() if nodes and wanted and s not in wanted]
        self._untold = {stage: self._untold.get(stage, now) for stage in untold}
        return {stage for stage, since in self._untold.items() if now - since >= UNTOLD_FOR}

    def _serves(self, node: NodeProcess) -> bool:
        return (self._local.status_of(node) or {}).get("state") == "ready"

    def _make(self, move: Move) -> None:
        nodes = self._extra.setdefault(move.stage, [])
        if move.by > 0:
            role = f"shard-{move.stage}"
            try:
                nodes.append(self._local.start(role, self._model, *self._arguments))
            except OSError as error:
                self._broken[move.stage] = time.monotonic() + TRY_AGAIN_AFTER
                self._tell(f"stage {move.stage}: a further node cannot be started: {error}")
                return
        else:
            self._end(nodes.pop())
        word = "a node more" if move.by > 0 else "a node less"
        self._tell(f"stage {move.stage}: {word} ({self._base + len(nodes)}): {move.why}")

    def _end(self, node: NodeProcess) -> None:
        node.wanted = False
        node.signal(signal.SIGTERM)
        self._leaving.append((node, time.monotonic() + STOP_TIMEOUT))

    def _end_the_broken(self, now: float) -> None:
        """One that keeps dying before it is ready would keep its place from other stages."""
        self._broken = {stage: until for stage, until in self._broken.items() if now < until}
        for stage, nodes in self._extra.items():
            for node in [each for each in nodes if _is_broken(each)]:
                nodes.remove(node)
                self._end(node)
                self._broken[stage] = now + TRY_AGAIN_AFTER
                log = f"see {node.log_path}" if node.log_path else "it has no log"
                self._tell(f"stage {stage}: a further node does not become ready: {log}")

    def _forget_the_ended(self, now: float) -> None:
        """One that hangs in its drain is killed, as at the end of `swarm up`."""
        for node, until in list(self._leaving):
            if not node.alive:
                self._leaving.remove((node, until))
                self._local.supervisor.nodes.remove(node)
            elif now >= until:
                node.signal(signal.SIGKILL)


def _is_broken(node: NodeProcess) -> bool:
    return not (node.alive or node.was_ready) and node.past.failures >= BROKEN_FROM
