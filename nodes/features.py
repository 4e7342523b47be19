"""The features of the programs, in plain sight. One whose rooms are not there is left out."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from nodes.feature import Feature
from swarm.features import declared

T = TypeVar("T")

NAMES = (
    "quantize",
    "language",
    "cameras",
    "learning",
    "auto",
    "gateway",
    "openai",
    "watch",
    "sites",
    "records",
    "rollout",
    "upgrade",
    "compose",
    "cache",
    "guard",
)


@cache
def features() -> tuple[Feature, ...]:
    """Those that are there, in the order of `NAMES`."""
    return tuple(declared("nodes", NAMES))


def first(ask: Callable[[Feature], T | None]) -> T | None:
    """What the first feature answers that has an answer."""
    return next((found for each in features() if (found := ask(each)) is not None), None)
