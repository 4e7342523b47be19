"""What a node's status says of the guards at its stages 1."""

from __future__ import annotations

from swarm.fleet.documents import fields, form, rows

GUARD = form(
    fields(
        names="model version",
        counts="rows unfamiliar failed recent_rows recent_unfamiliar",
        shares="false_alarms bound",
        texts="since",
    ),
    ("model", "version", "rows", "unfamiliar"),
)
STATUS = {"guards": rows(GUARD)}
