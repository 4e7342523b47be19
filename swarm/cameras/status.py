"""What an edge's status says of its cameras."""

from __future__ import annotations

from swarm.fleet.documents import fields, form, rows

CAMERA = form(
    fields(
        names="name",
        texts="where state error",
        counts="frames dropped torn decode_ms reconnects sent",
        latencies="age_ms",
        histograms="age_s",
        any="gate mask guard crops",
    ),
    ("name", "state"),
)
STATUS = {"cameras": rows(CAMERA)}
