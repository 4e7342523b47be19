"""The features of the mesh, in plain sight. One whose room is not there is left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from swarm.feature import MeshFeature

NAMES = (
    "language",
    "learning",
    "sites",
    "records",
    "rollout",
    "auto",
    "cameras",
    "watch",
    "upgrade",
    "gateway",
    "cache",
    "compose",
    "guard",
)


@cache
def features() -> tuple[MeshFeature, ...]:
    """Those that are there, in the order of `NAMES`."""
    return tuple(declared("swarm", NAMES))


def declared(package: str, names: Iterable[str]) -> Iterator[Any]:
    """What the features of these names say about themselves to a package."""
    for name in names:
        if _is_there(module := f"{package}.{name}.feature"):
            yield import_module(module).FEATURE


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its room is missing too
        return False
