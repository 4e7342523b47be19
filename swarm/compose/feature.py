"""Compositions: models that ask others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from swarm.feature import MeshFeature


def _asks(manifest: Mapping[str, Any]) -> Iterable[str]:
    part = manifest.get("composition")
    return () if part is None else part["models"].values()


FEATURE = MeshFeature("compose", asks=_asks)
