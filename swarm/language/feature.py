"""Language models: sessions of tokens."""

from __future__ import annotations

from swarm.feature import MeshFeature, Row


def _of_mesh() -> type:
    from swarm.language.of_mesh import Generates

    return Generates


def _of_over() -> type:
    from swarm.language.over import GeneratesOver

    return GeneratesOver


FEATURE = MeshFeature(
    "language",
    of_mesh=_of_mesh,
    of_over=_of_over,
    rights={
        "swarm.{mesh}.fresh.{model}.*.{stage}": [
            Row(
                "swarm.{mesh}.generate.{model}",
                "requests for tokens",
                publish={"client", "requester", "gateway"},
                subscribe={"answerers"},
                queues=("q", "w.*"),
                many=True,
            ),
            Row(
                "swarm.{mesh}.steps.{model}.*.1.*.*",
                "sessions to another node of stage 1",
                publish={"servers"},
            ),
            Row(
                "swarm.{mesh}.steps.{model}.*.{next}.*.*",
                "steps to the next stage",
                publish={"servers"},
            ),
            Row(
                "swarm.{mesh}.steps.{model}.*.{stage}.{user}.*",
                "steps for the own nodes of the own stage",
                subscribe={"servers"},
            ),
        ],
    },
)
