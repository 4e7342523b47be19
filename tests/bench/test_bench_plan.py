"""The benchmark of an edge's own choice: which cuts its rivals take, and what counts as a miss."""

from __future__ import annotations

from bench.fleets.placing import misses, rivals
from shards.split.split import split
from shards.zoo.builders import mlp


def test_a_rule_without_a_link_takes_the_cut_that_is_nearest_to_its_share() -> None:
    model = split(mlp(8, 8), name="m", stages=8, profile=False)
    shards = model.manifest.shards
    ends = {f"split@{shard.stage + 1}": shard.end / shards[-1].end for shard in shards[:-1]}
    found = rivals(model)
    assert abs(ends[found["equal"]] - 1 / 3) == min(abs(end - 1 / 3) for end in ends.values())
    assert ends[found["exo"]] < ends[found["equal"]]


def test_a_choice_more_than_a_tenth_above_the_best_way_is_a_miss() -> None:
    cell = {"mbit": 5, "round_trip_ms": 2, "best": "edge", "choice": 1.0}
    said = misses({"failed": [], "cells": [cell | {"ratio": 1.09}, cell | {"ratio": 1.5}]})
    assert len(said) == 1
    assert "1.50 times as long as edge" in said[0]
