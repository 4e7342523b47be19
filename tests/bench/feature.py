"""What a feature adds to `swarm bench`: the object `FEATURE` of `bench.<name>.feature`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nodes.features import NAMES
from swarm.features import declared

if TYPE_CHECKING:
    from bench.hostile.target import Target


@dataclass(frozen=True)
class Feature:
    """commands: functions; one of a name that is there takes its place. targets: parsers that
    `swarm bench hostile` attacks."""

    commands: tuple[Callable[..., int], ...] = ()
    targets: Callable[[], tuple[Target, ...]] = tuple


def features() -> Iterator[Feature]:
    """Of those that are there."""
    yield from declared("bench", NAMES)
