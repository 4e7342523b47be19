"""How many nodes each stage of this node should have: told in its status, for whoever adds nodes.

The decision is `swarm.fleet.scaling`; all nodes of a stage tell the same, give or take a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from nodes.connection.connection import Connection
from nodes.versions.serving import Serving, by_stage
from swarm.fleet.advertised import Where
from swarm.fleet.scaling import Scaling
from swarm.fleet.warm_pool import StageState, states_of
from swarm.periodic import BEAT, beat

LOOK_EVERY = 10 * BEAT  # seconds


class Wanting:
    """`run()` looks at the mesh until cancelled; `status()` tells."""

    def __init__(self, connection: Connection, servings: Callable[[], list[Serving]]) -> None:
        self._peers = connection.peers
        self._servings = servings
        self._scaling = Scaling()
        self._states: list[StageState] = []
        self._wanted: dict[Where, int] = {}

    async def run(self) -> None:
        while True:
            await beat(LOOK_EVERY)
            stages = sorted(by_stage(self._servings()))
            self._states = states_of(self._peers.alive(), stages)
            loads = [state.load for state in self._states]
            self._wanted = self._scaling.observe(loads, time.monotonic())

    def status(self) -> dict[str, Any]:
        """The field `wanted` of a status document."""
        rows = [
            {
                "model": model,
                "version": version,
                "stage": stage,
                "nodes": state.load.nodes,
                "busy": round(state.busy, 3),
                "replicas": self._wanted[state.where],
            }
            for state in self._states
            for model, version, stage in [state.where]
        ]
        return {"wanted": rows} if rows else {}
