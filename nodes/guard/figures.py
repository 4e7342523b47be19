"""What guards tell as figures."""

from __future__ import annotations

from nodes.figures import FiguresOf, counter, gauge

FIGURES = (
    FiguresOf(
        "guards",
        {
            "swarm_guard_rows": counter("Rows of requests that a guard has judged.", "rows"),
            "swarm_guard_unfamiliar_rows": counter(
                "Those that are unlike the calibration data.", "unfamiliar"
            ),
            "swarm_guard_failed": counter("Requests that could not be judged.", "failed"),
            "swarm_guard_false_alarm_ratio": gauge(
                "The share of usual rows that are taken for unfamiliar, as calibrated.",
                "false_alarms",
            ),
        },
        labels={"model": "model", "version": "version"},
    ),
)
