"""Requests that wait at a site while it is cut off from the hub."""

from __future__ import annotations

from swarm.feature import Feature


def _of_mesh() -> type:
    from swarm.sites.of_mesh import Submits

    return Submits


FEATURE = Feature("sites", of_mesh=_of_mesh)
