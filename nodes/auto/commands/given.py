"""Options of plans that commands of the core have: `swarm model split --plan`, `push --plan`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodes.cli.command import seldom
from nodes.feature import Given
from swarm.errors import InvalidArgument

if TYPE_CHECKING:
    from nodes.feature import AtPush


@dataclass(frozen=True)
class SplitByPlan:
    """Of `swarm model split`."""

    plan: str = seldom("", "A plan's file (`swarm model plan -o`): its cuts; instead of --stages.")


@dataclass(frozen=True)
class PushPlan:
    """Of `swarm model push`."""

    plan: str = seldom(
        "",
        "A plan's file (`swarm model plan --devices mesh -o`): it is put in force for the mesh's "
        "nodes of role auto, in the place of the one they made.",
    )
    freeze: bool = seldom(False, "With --plan: nodes keep to it, and propose no other one.")


def cuts(given: Given) -> list[list[str]] | None:
    """Those of the plan, where there is one. Raises `InvalidArgument`."""
    options = given.of(SplitByPlan)
    if options is None or not options.plan:
        return None
    from nodes.auto.commands.planning import read_plan_file  # other splits plan nothing

    return read_plan_file(options.plan).cuts


def pushes(given: Given) -> list[AtPush]:
    """Raises `InvalidArgument`."""
    options = given.of(PushPlan)
    if options is None:
        return []
    if options.freeze and not options.plan:
        raise InvalidArgument("--freeze goes with --plan; else `swarm model plan --freeze`")
    if not options.plan:
        return []
    from nodes.auto.commands.push_plan import PushedPlan  # other pushes plan nothing

    return [PushedPlan(options.plan, options.freeze)]
