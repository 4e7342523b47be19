"""A rollout in the registry: an operator puts it there, and a node ends it."""

from __future__ import annotations

import json
from typing import Any

from swarm.errors import InvalidArgument
from swarm.link import Link, jetstream
from swarm.models.registry import REASON_LIMIT, Registry, abort_key
from swarm.rollout.plan import RolloutPlan
from swarm.subjects import Subjects


async def roll_out(registry: Registry, model: str, plan: RolloutPlan, done: str = "") -> str:
    """Let a version prove itself by a plan, beside the version that serves, which is returned.
    done: as for `Registry.promote`.

    Raises `NotFound` where the version, or a version that serves, is not in the mesh;
    `InvalidArgument` while another rollout runs, and for the version that serves.
    """
    await registry.manifest(model, plan.version)

    def with_rollout(document: dict[str, Any]) -> dict[str, Any]:
        running = document.get("rollout")
        if running is not None:
            raise InvalidArgument(
                f"a rollout of {model}@{running['version']} runs: wait for its end (`swarm "
                f"model status {model}`), or end it by `swarm model rollback {model}`"
            )
        if any(entry["version"] == plan.version for entry in document["serve"]):
            raise InvalidArgument(f"{model}@{plan.version} serves already: name another one")
        return document | {"rollout": plan.document()}

    return await registry.change(model, with_rollout, done)


async def abort(
    link: Link, subjects: Subjects, model: str, plan: str, node: str, reason: str
) -> bool:
    """End a rollout: its traffic goes back to the version before. The first word counts: whether
    this was it. Raises `Unavailable`."""
    value = json.dumps({"v": 1, "node": node, "reason": reason[:REASON_LIMIT]}).encode()
    key = abort_key(model, plan)
    stored = await jetstream.kv_replace(link, subjects.config_bucket, key, value, after=0)
    return stored is not None
