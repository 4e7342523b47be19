"""How many nodes each slot of a version should have, as one node of role auto sees the mesh.

A node computes all stages of its slot, so it is as busy as all of them together. What the slot
wants is wanted of each of its stages: so outer scalers read it as they do of other roles
(`nodes.duties.wanting`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from typing import Any

from swarm.auto.document import PlanInForce
from swarm.auto.replicating import Change, change, slot_loads
from swarm.auto.slots import AutoNode
from swarm.fleet.advertised import Where, burning_models
from swarm.fleet.scaling import Scaling, StageLoad
from swarm.fleet.warm_pool import states_of
from swarm.gossip import PeerView
from swarm.periodic import BEAT

LOOK_EVERY = 3 * BEAT  # seconds


class Replicas:
    """`look` at the mesh regularly; `change` and `rows` tell what was seen."""

    def __init__(self) -> None:
        self._scaling = Scaling()
        self._looked_at = -inf
        self._seen: tuple[PlanInForce, dict[str, int]] | None = None
        self._loads: list[StageLoad] = []  # of slots, named by their first stages
        self._wanted: dict[Where, int] = {}

    def look(
        self,
        plan: PlanInForce,
        last: int,
        filled: dict[str, int],
        alive: Collection[PeerView],
        now: float,
    ) -> None:
        """Take the present loads in, unless that has just been done for the same nodes. last: the
        number of the version's stages. alive: the living nodes. now: `time.monotonic()`."""
        if (plan, filled) == self._seen and now - self._looked_at < LOOK_EVERY / 2:
            return
        self._seen, self._looked_at = (plan, filled), now
        states = states_of(alive, [(plan.model, plan.version, n) for n in range(1, last + 1)])
        self._loads = slot_loads(plan, filled, states)
        burning = burning_models(alive) & {plan.model}
        self._wanted = self._scaling.observe(self._loads, now, burning)

    def change(
        self, plan: PlanInForce, filled: dict[str, int], nodes: Sequence[AutoNode]
    ) -> Change | None:
        """The one slot that gets a node, or gives one back; None where all is well."""
        return change(plan, filled, nodes, self._loads, self._wanted, self._scaling.helped)

    def rows(self, plan: PlanInForce, slot: int) -> list[dict[str, Any]]:
        """Of the field `wanted` of a status document, for the stages of a slot."""
        found = plan.slots[slot]
        load = next((each for each in self._loads if each.where[2] == found.first), None)
        if load is None:
            return []
        return [
            {
                "model": plan.model,
                "version": plan.version,
                "stage": stage,
                "nodes": load.nodes,
                "busy": round(load.busy, 3),
                "replicas": self._wanted[load.where],
                "burns": load.where in self._scaling.helped,
            }
            for stage in found.stages
        ]
