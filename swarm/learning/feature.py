"""Heads that nodes learn, and agree about by deltas."""

from __future__ import annotations

from swarm.feature import Feature


def _of_mesh() -> type:
    from swarm.learning.of_mesh import Teaches

    return Teaches


FEATURE = Feature("learning", of_mesh=_of_mesh)
