"""Why a plan cannot run, and when what nodes hold of it is for other models. Pure.

Stages of a version that cannot run serve nobody. Where other models are on the same devices, they
are let go soon, by a plan without slots: the room is for whoever can run in it, models of lower
priority too. It is not claimed again before there is a draft of all stages; such a draft counts
what models of lower priority hold as room, so what returns to the fleet comes to the version first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from swarm.auto.document import PlanInForce
from swarm.auto.slots import empty
from swarm.flow.lasting import holds_since

# Seconds for which no draft has had room, until the stages are let go: longer than news of claims
# take, and than a claim that does not fit beside another one stands.
GIVE_UP_AFTER = 4.0


def lacks(
    plan: PlanInForce | None, last: int, filled: Mapping[str, int], named: Collection[int] = ()
) -> str:
    """Why a plan cannot run with the nodes that fill it; "" where it can. last: the number of the
    version's stages. named: stages with nodes named by hand."""
    if plan is None:
        return "there is no plan yet"
    if plan.slots and plan.slots[-1].last > last:
        return f"it names stage {plan.slots[-1].last}, of {last}"
    for stage in range(1, last + 1):
        if stage not in named and plan.of_stage(stage) is None:
            return f"no slot has stage {stage}"
    for number in empty(plan, filled):
        slot = plan.slots[number]
        if not all(stage in named for stage in slot.stages):
            return f"no node is left for the stages {slot.first}-{slot.last}"
    return ""


class GivingUp:
    """One node's patience with a version. `now`: seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._since: float | None = None

    def observe(
        self, plan: PlanInForce | None, has_room: bool, is_for_several: bool, now: float
    ) -> bool:
        """Whether to let go of all that nodes hold. has_room: the plan can run, or a draft could.
        is_for_several: other models are on these devices. A frozen plan stays as it is."""
        self._since = holds_since(self._since, not has_room, now)
        if plan is None or not plan.slots or plan.frozen or self._since is None:
            return False
        return is_for_several and now - self._since >= GIVE_UP_AFTER
