"""What a node counts and times of a stage, as its status shows it."""

from __future__ import annotations

from nodes.stage.counters import Counters, StageStats


def test_counts_are_shown_by_name() -> None:
    counts = Counters(served=3, blocked=1).as_doc()
    assert (counts["served"], counts["blocked"], counts["failed"]) == (3, 1, 0)
    assert {"taken", "handed_over", "redelivered", "dead_lettered", "cancelled"} <= counts.keys()


def test_latencies_are_shown_in_milliseconds_of_the_last_ten_seconds() -> None:
    stats = StageStats()
    for n in range(100):
        stats.compute.add(0.020, 100.0 + n / 100)
    stats.queue.add(0.001, 101.0)
    shown = stats.as_doc(101.0)
    assert 19.0 < shown["compute_ms"]["p50"] < 21.0
    assert shown["compute_ms"]["ewma"] == 20.0
    assert 0.9 < shown["queue_ms"]["p99"] < 1.1
    assert stats.as_doc(120.0)["compute_ms"]["p50"] == 0.0
