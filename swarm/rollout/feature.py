"""A new version by steps of traffic, under guards."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from swarm.feature import CONFIG, GET, MeshFeature, Row

if TYPE_CHECKING:
    from swarm.link import Link
    from swarm.rollout.plan import RolloutPlan
    from swarm.rollout.rollouts import Rollouts
    from swarm.subjects import Subjects


def _trial(document: Any) -> RolloutPlan:
    from swarm.rollout.plan import parse_plan

    return parse_plan(document)


def _trials(link: Link, subjects: Subjects, under_way: Callable[[], int]) -> Rollouts:
    from swarm.rollout.rollouts import Rollouts

    return Rollouts(link, subjects, under_way)


FEATURE = MeshFeature(
    "rollout",
    trial=_trial,
    trials=_trials,
    rights={
        f"{GET}.KV_{CONFIG}": [
            # A node can end a rollout, and nothing else: traffic goes back to the version before.
            Row(
                f"$KV.{CONFIG}.abort.{{model}}.*",
                "end a rollout whose guards are broken",
                publish={"nodes"},
            ),
            Row(
                f"{GET}.KV_{CONFIG}.$KV.{CONFIG}.abort.{{model}}.*",
                "was a rollout ended?",
                publish={"nodes", "requester"},
            ),
            Row(
                "swarm.{mesh}.reports.{model}.*",
                "what requesters observe of a version under rollout",
                publish={"nodes", "requester"},
                subscribe={"nodes"},
            ),
            Row(
                "swarm.{mesh}.guards.{model}.{user}.*",
                "how a rollout's guards stand, by the own nodes",
                publish={"nodes"},
            ),
            Row(
                "swarm.{mesh}.guards.{model}.*.*",
                "how a rollout's guards stand",
                subscribe={"nodes", "requester"},
            ),
            Row(
                "swarm.{mesh}.guards.*.*.*",
                "the same, of any model",
                subscribe={"operator"},
            ),
        ],
    },
)
