"""The faults of `swarm bench chaos`, on the nodes of a composition and of its models.

Two nodes of each; both ways ask at once, as under kill -9 (`compose`), but nobody waits for a node
to be ready again before the next fault falls: all nodes of a model may be away at once. How long
they were is told, since a request that lasts longer than its budget fails by either way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.faults.chaos import fall
from bench.faults.chaos_schedule import Kind, rule, schedule
from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess

LOOK_EVERY = 0.05  # seconds between two looks which models have a ready node


@dataclass(frozen=True)
class Chaos:
    """seconds: of faults, 0 for none. every: seconds between two. kinds: that are drawn. budget:
    seconds of each request."""

    seconds: float = 0.0
    every: float = 1.5
    seed: int = 1
    kinds: Sequence[Kind] = tuple(Kind)
    budget: float = 10.0


NO_CHAOS = Chaos()


def _model(node: NodeProcess) -> str:
    return node.arguments[node.arguments.index("--model") + 1]


class Away:
    """The longest time for which no node of a model was ready, by model, in seconds."""

    def __init__(self, local: LocalMesh) -> None:
        self._local = local
        self._since: dict[str, float] = {}
        self.longest: dict[str, float] = {}

    async def run(self) -> None:
        while True:
            now, served = time.monotonic(), dict[str, bool]()
            for node in self._local.supervisor.nodes:
                status = self._local.status_of(node) if node.alive else None
                ready = status is not None and status.get("state") == "ready"
                served[_model(node)] = served.get(_model(node), False) or ready
            for model, is_served in served.items():
                since = now if is_served else self._since.get(model, now)
                self._since[model] = since
                self.longest[model] = max(self.longest.get(model, 0.0), round(now - since, 2))
            await asyncio.sleep(LOOK_EVERY)


async def under_chaos(
    chaos: Chaos, local: LocalMesh, load: Callable[[Awaitable[Any]], Awaitable[None]]
) -> dict[str, Any]:
    """load(faults): asks until the faults have fallen. Figures of the faults, for a document."""
    nodes = local.supervisor.nodes
    victims = [f"a node of {_model(node)}" for node in nodes]
    faults = schedule(chaos.seed, chaos.seconds, chaos.every, len(victims), chaos.kinds)
    away = Away(local)
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(away.run())
        falling = group.create_task(fall(local, faults, victims, time.monotonic()))
        await load(falling)
        looking.cancel()
    return {
        "rule": rule(chaos.every, sorted(set(victims)), chaos.kinds),
        "seed": chaos.seed,
        "faults_fallen": sum(fault["fell"] for fault in falling.result()),
        "restarts": sum(node.restarts for node in nodes),
        "budget_ms": chaos.budget * 1e3,
        "longest_away_s": away.longest,
    }
