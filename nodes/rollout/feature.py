"""A new version by steps of traffic, under guards."""

from __future__ import annotations

from nodes.feature import Feature, Part, Surroundings


def _parts(around: Surroundings) -> list[Part]:
    from nodes.rollout.judging import Judging

    return [Judging(around.connection, around.versions)]


FEATURE = Feature("rollout", parts=_parts)
