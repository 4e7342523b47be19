"""Language models: sessions of tokens."""

from __future__ import annotations

from swarm.feature import MeshFeature, rows


def _of_mesh() -> type:
    from swarm.language.of_mesh import Generates

    return Generates


FEATURE = MeshFeature(
    "language",
    status="swarm.language.status",
    of_mesh=_of_mesh,
    of_over=_of_mesh,
    rights={
        "swarm.{mesh}.fresh.{model}.*.{stage}": rows(
            """
swarm.{mesh}.generate.{model} | client requester gateway | answerers in q w.* |\
 requests for tokens | many
swarm.{mesh}.steps.{model}.*.1.*.* | servers | | sessions to another node of stage 1
swarm.{mesh}.steps.{model}.*.{next}.*.* | servers | | steps to the next stage
swarm.{mesh}.steps.{model}.*.{stage}.{user}.* | | servers | steps for the own nodes of the own stage
"""
        ),
    },
)
