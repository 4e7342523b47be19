"""`swarm model push FOLDER --plan FILE`: put a plan in force that a person has chosen."""

from __future__ import annotations

from typing import Any

import swarm
from nodes.acts import person
from nodes.auto.asked_plan import asked_draft, stages_of
from nodes.auto.commands.planning import read_plan_file
from nodes.auto.commands.planning_mesh import statuses
from nodes.auto.planning import facts_of
from nodes.auto.told import auto_nodes_told, by_hand
from nodes.cli.acts import on_record
from shards.manifest import Manifest
from swarm.auto.document import outline
from swarm.auto.drafts import Draft
from swarm.auto.plan_store import PlanStore
from swarm.model import ModelInfo
from swarm.wire.codec_choice import AUTO


class PushedPlan:
    """A plan of a file, for the nodes that live at the push."""

    def __init__(self, path: str, frozen: bool) -> None:
        self._path, self._frozen = path, frozen
        self._draft: Draft | None = None

    async def before(self, client: swarm.Mesh, manifest: Manifest) -> None:
        """Raises `InvalidArgument` for a file that is no plan, `BadPlan` for one that does not fit
        the model and the nodes."""
        file = read_plan_file(self._path)
        ranges = stages_of(manifest, file.cuts, file.source_sha256)
        documents, version = await statuses(client), (manifest.model, manifest.version)
        nodes = [
            told.of(version) for told in auto_nodes_told(documents) if told.model == manifest.model
        ]
        facts = facts_of(manifest, ModelInfo.from_manifest(manifest.to_json()), AUTO)
        self._draft = asked_draft(ranges, file.devices, facts, nodes, by_hand(documents, version))

    async def after(self, client: swarm.Mesh, info: ModelInfo) -> tuple[dict[str, Any], str]:
        """Put it in force, whatever the plan before was. Raises `Unavailable` where others change
        it just now."""
        assert self._draft is not None
        model, version = info.model, info.version
        by = person() or "an operator"
        store = PlanStore(client.link, client.subjects)
        reason = f"pushed by {by}"
        plan, before = await store.put(model, version, self._draft, by, reason, self._frozen)
        about = {"plan": plan.number, "from": outline(before), "to": outline(plan)}
        await on_record(client, "planned", model, version, why=reason, **about)
        held = "; frozen: nodes propose no other one" if plan.frozen else ""
        line = f"plan {plan.number} is in force: {outline(plan)}{held}"
        return {"plan": plan.document()}, line
