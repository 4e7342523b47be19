"""What a simulated fleet that changes all the time must not show."""

from __future__ import annotations

from bench.auto.churn import CHURN, ChurnPlan, churn_misses


def test_a_simulated_fleet_is_counted_and_what_must_not_be_is_a_miss() -> None:
    document = CHURN.document(ChurnPlan(devices=8, minutes=2.0))
    assert document["passed"], document["missed"]
    assert document["plans"] >= 1
    assert 0 < document["core_percent"] <= document["core_percent_first"]
    bad = {"least_between_gains_s": 20.0, "to_and_fro": 1, "not_filled_again": 1}
    bad |= {"plans_apart_s": {"times": 1, "longest": 60.0}, "core_percent_first": 7.0}
    assert len(churn_misses(document | bad)) == len(bad)
