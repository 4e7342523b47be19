"""How many nodes each stage of this node should have: told in its status, for whoever adds nodes.

The decision is `swarm.fleet.scaling`; all nodes of a stage tell the same, give or take a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from nodes.connection.connection import Connection
from nodes.versions.serving import Serving, by_stage
from swarm.fleet.advertised import Where, burning_models
from swarm.fleet.scaling import Scaling
from swarm.fleet.warm_pool import StageState, states_of
from swarm.periodic import BEAT, beat

LOOK_EVERY = 10 * BEAT  # seconds


class Wanting:
    """`run()` looks at the mesh until cancelled, unless somebody else does; `status()` tells."""

    def __init__(self, connection: Connection, servings: Callable[[], list[Serving]]) -> None:
        self._peers = connection.peers
        self._servings = servings
        self._scaling = Scaling()
        self._states: list[StageState] = []
        self._wanted: dict[Where, int] = {}
        self._looked_at = 0.0

    async def run(self) -> None:
        while True:
            await beat(LOOK_EVERY)
            if time.monotonic() - self._looked_at > LOOK_EVERY / 2:
                self.look(time.monotonic())

    def look(self, now: float) -> tuple[list[StageState], Mapping[Where, int]]:
        """The present states of this node's stages, and how many nodes each should have. now:
        `time.monotonic()`."""
        self._looked_at, peers = now, self._peers.alive()
        servings, burning = self._servings(), burning_models(peers)
        own = sorted(by_stage(servings))
        # Which of a model's stages gets a node for its objective is to be decided among all.
        others = {
            (serving.info.model, serving.info.version, stage)
            for serving in servings
            if serving.info.model in burning
            for stage in range(1, serving.info.last + 1)
        }
        states = states_of(peers, [*own, *sorted(others.difference(own))])
        self._wanted = self._scaling.observe([state.load for state in states], now, burning)
        self._states = states[: len(own)]
        return self._states, self._wanted

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
                "burns": state.where in self._scaling.helped,
            }
            for state in self._states
            for model, version, stage in [state.where]
        ]
        return {"wanted": rows} if rows else {}
