"""What a node's status says of the parts of the compositions that it runs."""

from __future__ import annotations

from swarm.fleet.documents import fields, form, rows

PART = form(
    fields(
        names="model version part",
        texts="is",
        of_counts="counters",
        latencies="ms",
        histograms="seconds",
    ),
    ("model", "version", "part"),
)
STATUS = {"compositions": rows(PART)}
