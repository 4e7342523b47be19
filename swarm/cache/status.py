"""What a node's status says of the answers that it keeps."""

from __future__ import annotations

from swarm.fleet.documents import fields, form, rows

CACHE = form(
    fields(names="model version", counts="entries bytes", of_counts="counters"),
    ("model", "version"),
)
STATUS = {"cache": rows(CACHE)}
