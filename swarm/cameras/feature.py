"""Edges whose sources are cameras, and the nodes that join what several of them see."""

from __future__ import annotations

from swarm.feature import MeshFeature, UserRole, rows

FEATURE = MeshFeature(
    "cameras",
    status="swarm.cameras.status",
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
        "swarm.{mesh}.results.*": rows(
            """
swarm.{mesh}.review.* | edge | operator | pictures that an edge asks a person to look at
"""
        ),
    },
)
