"""A new version by steps of traffic, under guards."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from swarm.feature import CONFIG, GET, MeshFeature, rows

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
    status="swarm.rollout.status",
    trial=_trial,
    trials=_trials,
    rights={
        f"{GET}.KV_{CONFIG}": rows(
            """
# A node can end a rollout, and nothing else: traffic goes back to the version before.
$KV.<config>.abort.{model}.* | nodes | | end a rollout whose guards are broken
<get>.KV_<config>.$KV.<config>.abort.{model}.* | nodes requester | | was a rollout ended?
swarm.{mesh}.reports.{model}.* | nodes requester | nodes |\
 what requesters observe of a version under rollout
swarm.{mesh}.guards.{model}.{user}.* | nodes | | how a rollout's guards stand, by the own nodes
swarm.{mesh}.guards.{model}.*.* | | nodes requester | how a rollout's guards stand
swarm.{mesh}.guards.*.*.* | | operator | the same, of any model
"""
        ),
    },
)
