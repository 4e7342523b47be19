"""What the parts of compositions tell as figures."""

from __future__ import annotations

from nodes.figures import FiguresOf, counters, durations

OUTCOMES = ("runs", "left_out", "cancelled")
FIGURES = (
    FiguresOf(
        "compositions",
        {
            "swarm_part_seconds": durations(
                "From the moment that a part has what it reads to what it makes.", "seconds"
            ),
            "swarm_part_runs": counters(
                "Parts of requests by what became of them.", "counters", "outcome", OUTCOMES
            ),
        },
        labels={"model": "model", "version": "version", "part": "part"},
    ),
)
