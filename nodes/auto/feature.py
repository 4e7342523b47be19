"""Role `auto`: nodes agree by themselves which of them serves which stages."""

from __future__ import annotations

from nodes.feature import Feature, Role

FEATURE = Feature(
    "auto",
    roles={
        "auto": Role(
            "serves the stages that the mesh's own plan gives it.", answers=True, witnesses=True
        )
    },
)
