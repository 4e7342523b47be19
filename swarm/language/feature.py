"""Language models: sessions of tokens."""

from __future__ import annotations

from swarm.feature import Feature


def _of_mesh() -> type:
    from swarm.language.of_mesh import Generates

    return Generates


FEATURE = Feature("language", of_mesh=_of_mesh)
