"""The audit's records are attacked by `swarm bench hostile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.feature import Feature

if TYPE_CHECKING:
    from bench.hostile.target import Target


def _targets() -> tuple[Target, ...]:
    from bench.records.targets import TARGETS

    return TARGETS


FEATURE = Feature(targets=_targets)
