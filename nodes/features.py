"""The features of the programs, in plain sight. One whose rooms are not there is left out."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec

from nodes.feature import Feature

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
    return tuple(
        import_module(f"nodes.{name}.feature").FEATURE for name in NAMES if _is_there(name)
    )


def _is_there(name: str) -> bool:
    try:
        return find_spec(f"nodes.{name}.feature") is not None
    except ModuleNotFoundError:  # nor is its room
        return False
