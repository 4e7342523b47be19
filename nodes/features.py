"""The features of the programs, in plain sight. One whose rooms are not there is left out."""

from __future__ import annotations

from functools import cache

from nodes.feature import Feature
from swarm.features import declared

NAMES = (
    "language",
    "cameras",
    "learning",
    "auto",
    "gateway",
    "watch",
    "sites",
    "records",
    "rollout",
    "upgrade",
    "quantize",
)


@cache
def features() -> tuple[Feature, ...]:
    """Those that are there, in the order of `NAMES`."""
    return tuple(declared("nodes", NAMES))
