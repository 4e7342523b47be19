"""Guards: how far requests are from a model's calibration data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodes.feature import Feature, later

if TYPE_CHECKING:
    from shards.manifest import Manifest

GUARD = "guard"  # the part of a manifest


def _describes(manifest: Manifest) -> list[str]:
    part = manifest.parts.get(GUARD)
    if part is None:
        return []
    does = "refuses" if part["refuse"] else "tells of"
    return [
        f"a guard {does} inputs unlike its {part['samples']} samples; of inputs like them it takes "
        f"{part['false_alarms']:.2%} for others"
    ]


FEATURE = Feature(
    "guard",
    looks={GUARD: later("nodes.guard.judging:prepare")},
    figures="nodes.guard.figures",
    notes=later("nodes.guard.lately:notes"),
    describes=_describes,
    commands={"Make": {"model guard": "nodes.guard.commands.guard:guard"}},
)
