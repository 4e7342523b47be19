"""What an owner says of kept answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodes.cli.command import seldom
from nodes.feature import Given
from shards.cache.part import PART, SIZES, CacheBounds, in_units
from shards.errors import ManifestError
from shards.manifest import Manifest
from swarm.errors import InvalidArgument

_TIMES = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class CacheOptions:
    """Of `swarm model split` and `swarm up`."""

    cache: str = seldom(
        "",
        "Each node of stage 1 keeps so much of the answers, as 64MB, and answers equal requests "
        "with them.",
    )
    cache_age: str = seldom("60s", "With --cache: for how long an answer is kept, as 60s or 1h.")


def parts_of(given: Given, manifest: Manifest) -> Mapping[str, Any]:
    """The part of the manifest that the options ask for. Raises `InvalidArgument`."""
    options = given.of(CacheOptions)
    if options is None or not options.cache:
        return {}
    if (kind := manifest.kind) is not None:
        raise InvalidArgument(f"--cache: this is {kind.about}, whose answers are not kept")
    size = _number("--cache", options.cache, SIZES)
    age = _number("--cache-age", options.cache_age, _TIMES)
    try:
        return {PART.field: CacheBounds.of({"bytes": int(size), "age_s": age}).to_doc()}
    except ManifestError as error:
        raise InvalidArgument(f"--cache: {error}") from None


def _number(flag: str, text: str, units: Mapping[str, float]) -> float:
    """Raises `InvalidArgument`."""
    number = in_units(text, units)
    if number is None:
        raise InvalidArgument(f"{flag} {text!r}: it is a number with {', '.join(units)}")
    return number
