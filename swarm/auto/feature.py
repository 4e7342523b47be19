"""Nodes agree by themselves which of them serves which stages."""

from __future__ import annotations

from swarm.feature import CONFIG, GET, Feature, Row, UserRole

FEATURE = Feature(
    "auto",
    roles=[
        UserRole(
            "auto",
            "as a fallback; serves the stages of its slot, proposes plans",
            behind="standby",
            groups={"covers"},
        )
    ],
    rights={
        f"{GET}.KV_{CONFIG}.$KV.{CONFIG}.abort.{{model}}.*": [
            # Whatever stands in a plan moves work and changes no result.
            Row(
                f"$KV.{CONFIG}.plan.{{model}}.*",
                "propose a plan: which stages lie together",
                publish={"auto"},
            ),
            Row(
                f"{GET}.KV_{CONFIG}.$KV.{CONFIG}.plan.{{model}}.*",
                "the plan in force",
                publish={"auto"},
            ),
        ],
    },
)
