"""NodeRole `auto`: nodes agree by themselves which of them serves which stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodes.auto.places import AutoPlaces
from nodes.auto.settings import AUTO, AutoOptions
from nodes.feature import Commands, Feature, NodeRole, Part, Surroundings, later

if TYPE_CHECKING:
    from nodes.config import NodeConfig


def _places(config: NodeConfig) -> AutoPlaces | None:
    return AutoPlaces() if config.role == AUTO else None


def _parts(around: Surroundings) -> list[Part]:
    places = around.versions.places
    if not isinstance(places, AutoPlaces):
        return []
    from nodes.auto.planning import Planning  # other roles fill no slot

    record = None if around.audit is None else around.audit.acted
    return [Planning(around.connection, around.versions, places, record=record)]


COMMANDS: Commands = {
    "Choose the version that runs": {
        "model plan": "nodes.auto.commands.plan:plan",
        "model rooms": "nodes.auto.commands.rooms:rooms",
        "model priority": "nodes.auto.commands.rooms:priority",
    }
}


FEATURE = Feature(
    "auto",
    tells=["planned", "proposed", "no-room"],
    settings=[AutoOptions],
    roles={
        AUTO: NodeRole(
            "serves the stages that the mesh's own plan gives it.", answers=True, witnesses=True
        )
    },
    places=_places,
    parts=_parts,
    options={
        "up": ["nodes.auto.up:UpAutoOptions"],
        "model split": ["nodes.auto.commands.given:SplitByPlan"],
        "model push": ["nodes.auto.commands.given:PushPlan"],
    },
    companions=later("nodes.auto.up:companions"),
    commands=COMMANDS,
    cuts=later("nodes.auto.commands.given:cuts"),
    pushes=later("nodes.auto.commands.given:pushes"),
)
