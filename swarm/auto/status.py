"""What a node's status says of plans."""

from __future__ import annotations

from swarm.fleet.documents import COUNT, MOST_STAGES, fields, form, number, rows, table

RANGE = rows(number(1, MOST_STAGES), 2)  # first and last stage
PLAN = form(
    fields(
        {"slots": rows(RANGE, MOST_STAGES), "slot": RANGE}
        | dict.fromkeys(("pace_us", "replicas"), rows(COUNT, MOST_STAGES)),
        names="model version",
        counts="room_bytes plan held_bytes",
        texts="lacking reason",
        any="measured frozen priority",
    ),
    ("model", "version"),
)
STATUS = {"plans": rows(PLAN), "pools": table(COUNT)}
