"""The benchmark of an edge's own choice: which cuts its rivals take, and what counts as a miss."""

from __future__ import annotations

from bench.fleets import predicting
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


def test_a_plan_of_a_number_is_always_the_same_and_covers_the_model_within_the_machine() -> None:
    segments = {"digits": 12, "ultraface": 24, "resnet50": 24}
    drawn = [predicting.draw(number, segments) for number in range(1, 21)]
    assert drawn == [predicting.draw(number, segments) for number in range(1, 21)]
    for each in drawn:
        assert sum(each.shares) <= predicting.MOST_SHARE
        assert len(each.shares) == len(each.ranges)
        ends = [0, *(one.end for one in each.ranges)]
        assert [one.start for one in each.ranges] == ends[:-1]
        assert ends[-1] == segments[each.model]


def test_a_prediction_more_than_its_bound_away_is_a_miss() -> None:
    row = {"number": 7, "model": "digits", "predicted_rate": 100.0, "measured_rate": 90.0}
    rows = [row | {"predicted_ms": ms, "measured_ms": 10.0} for ms in (8.6, 13.0)]
    assert predicting.misses({"rows": rows}) == ["plan 7 (digits): ms is off by +30%"]
    assert predicting.summary(rows)["ms_within"] == 1
    assert predicting.summary(rows)["rate_within"] == 2
