"""What is told of kept answers as figures."""

from __future__ import annotations

from nodes.figures import FiguresOf, counters, gauge

OUTCOMES = ("hits", "misses", "joined", "passed", "evicted", "outdated")
FIGURES = (
    FiguresOf(
        "cache",
        {
            "swarm_cache_entries": gauge("Answers that the node keeps.", "entries"),
            "swarm_cache_bytes": gauge("Bytes of the answers that the node keeps.", "bytes"),
            "swarm_cache_events": counters(
                "Requests by whether a kept answer answered them, and answers by why they went.",
                "counters",
                "event",
                OUTCOMES,
            ),
        },
        labels={"model": "model", "version": "version"},
    ),
)
