"""`swarm model push FOLDER --plan FILE`: put a plan in force that a person has chosen."""

from __future__ import annotations

from dataclasses import dataclass

import swarm
from nodes.acts import person
from nodes.auto.asked_plan import asked_draft, stages_of
from nodes.auto.commands.planning import read_plan_file
from nodes.auto.commands.planning_mesh import statuses
from nodes.auto.planning import facts_of
from nodes.auto.told import auto_nodes_told, by_hand
from nodes.cli.acts import on_record
from shards.manifest import Manifest
from swarm.auto.document import PlanInForce, outline
from swarm.auto.drafts import Draft
from swarm.auto.plan_store import PlanStore
from swarm.model import ModelInfo
from swarm.wire.codec_choice import AUTO


@dataclass(frozen=True, slots=True)
class PushedPlan:
    """A plan that fits the model and the nodes that live now."""

    draft: Draft
    frozen: bool

    @classmethod
    async def of(
        cls, client: swarm.Mesh, path: str, manifest: Manifest, frozen: bool
    ) -> PushedPlan:
        """Raises `InvalidArgument` for a file that is no plan, `BadPlan` for one that does not
        fit."""
        file = read_plan_file(path)
        ranges = stages_of(manifest, file.cuts, file.source_sha256)
        documents, version = await statuses(client), (manifest.model, manifest.version)
        nodes = [
            told.of(version) for told in auto_nodes_told(documents) if told.model == manifest.model
        ]
        facts = facts_of(manifest, ModelInfo.from_manifest(manifest.to_json()), AUTO)
        draft = asked_draft(ranges, file.devices, facts, nodes, by_hand(documents, version))
        return cls(draft, frozen)

    async def put_in_force(self, client: swarm.Mesh, model: str, version: str) -> PlanInForce:
        """Whatever the plan before was. Raises `Unavailable` where others change it just now."""
        by = person() or "an operator"
        store = PlanStore(client.link, client.subjects)
        reason = f"pushed by {by}"
        plan, before = await store.put(model, version, self.draft, by, reason, self.frozen)
        about = {"plan": plan.number, "from": outline(before), "to": outline(plan)}
        await on_record(client, "planned", model, version, why=reason, **about)
        return plan
