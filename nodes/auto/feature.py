"""Role `auto`: nodes agree by themselves which of them serves which stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodes.auto.places import AutoPlaces
from nodes.auto.settings import AUTO, AutoOptions
from nodes.feature import Commands, Feature, Given, NodeRole, Part, Surroundings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nodes.config import NodeConfig
    from nodes.feature import AtPush
    from nodes.up.companion import Companion


def _places(config: NodeConfig) -> AutoPlaces | None:
    return AutoPlaces() if config.role == AUTO else None


def _parts(around: Surroundings) -> list[Part]:
    places = around.versions.places
    if not isinstance(places, AutoPlaces):
        return []
    from nodes.auto.planning import Planning  # other roles fill no slot

    record = None if around.audit is None else around.audit.acted
    return [Planning(around.connection, around.versions, places, record=record)]


def _options() -> Mapping[str, Sequence[type]]:
    from nodes.auto.commands.given import PushPlan, SplitByPlan
    from nodes.auto.up import UpAutoOptions

    return {"up": [UpAutoOptions], "model split": [SplitByPlan], "model push": [PushPlan]}


def _companions(given: Given) -> list[Companion]:
    from nodes.auto.up import companions

    return companions(given)


COMMANDS: Commands = {
    "Choose the version that runs": {"model plan": "nodes.auto.commands.plan:plan"}
}


def _cuts(given: Given) -> Sequence[Sequence[str]] | None:
    from nodes.auto.commands.given import cuts

    return cuts(given)


def _pushes(given: Given) -> Sequence[AtPush]:
    from nodes.auto.commands.given import pushes

    return pushes(given)


FEATURE = Feature(
    "auto",
    settings=[AutoOptions],
    roles={
        AUTO: NodeRole(
            "serves the stages that the mesh's own plan gives it.", answers=True, witnesses=True
        )
    },
    places=_places,
    parts=_parts,
    options=_options,
    companions=_companions,
    commands=COMMANDS,
    cuts=_cuts,
    pushes=_pushes,
)
