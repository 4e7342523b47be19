"""Edges whose sources are cameras, and the nodes that join what several of them see."""

from __future__ import annotations

from swarm.feature import MeshFeature, Row, UserRole

FEATURE = MeshFeature(
    "cameras",
    roles=[
        UserRole(
            "join",
            "hears edges' results, asks the model that joins them, answers requests",
            behind="edge",
            groups={"nodes", "answerers"},
            publishes={"swarm.{mesh}.results.*"},
            subscribes={"swarm.{mesh}.results.*"},
            starts="swarm-node --role join --of NAME,NAME --model {model}",
        )
    ],
    rights={
        "swarm.{mesh}.results.*": [
            Row(
                "swarm.{mesh}.review.*",
                "pictures that an edge asks a person to look at",
                publish={"edge"},
                subscribe={"operator"},
            ),
        ],
    },
)
