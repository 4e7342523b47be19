"""Random plans, predicted and measured: which are drawn, and what counts as a miss."""

from __future__ import annotations

from bench.auto import predicting


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
