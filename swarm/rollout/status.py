"""What a node's status says of a rollout."""

from __future__ import annotations

from swarm.fleet.documents import fields, form, number

ROLLOUT = form(
    fields(
        {"share": number(0, 100)},
        names="model version plan",
        texts="state reason",
        counts="reports_refused",
    ),
    ("model", "version", "share"),
)
STATUS = {"rollout": ROLLOUT}
