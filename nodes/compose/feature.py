"""Compositions: several models that answer one request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodes.feature import CommandGroup, Commands, Feature, later

if TYPE_CHECKING:
    from shards.manifest import Manifest

COMPOSITION = "composition"  # the part of a composition's manifest


def _describes(manifest: Manifest) -> list[str]:
    part = manifest.parts.get(COMPOSITION)
    if part is None:
        return []
    models = ", ".join(f"{model} ({name})" for name, model in sorted(part["models"].items()))
    return [
        f"a composition of {part['parts']} parts, which asks {models}",
        "its requests run side by side on a node, each part as soon as it has what it reads",
    ]


COMMANDS: Commands = {
    "Make": {
        "compose": CommandGroup(
            "Compositions: several models that answer one request.",
            {
                "Commands": {
                    "check": "nodes.compose.commands.check:check_composition",
                    "build": "nodes.compose.commands.build:build",
                    "index": "nodes.compose.commands.index:index",
                    "fit": "nodes.compose.commands.fit:fit",
                    "share": "nodes.compose.commands.share:share_layers",
                }
            },
        )
    }
}
FEATURE = Feature(
    "compose",
    loads={COMPOSITION: later("nodes.compose.serving:prepare")},
    describes=_describes,
    draws=later("nodes.compose.drawing:draw"),
    figures="nodes.compose.figures",
    commands=COMMANDS,
    options={"up": ["nodes.compose.up:UpComposeOptions"]},
    companions=later("nodes.compose.up:companions"),
    extras={"usearch": "retrieval"},
)
