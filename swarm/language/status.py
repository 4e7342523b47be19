"""What a node's status says of sessions of tokens."""

from __future__ import annotations

from swarm.fleet.documents import fields, form, rows

GENERATION = form(
    fields(
        stages="stage",
        names="model version",
        counts="slots sessions context kv_bytes kept_bytes",
        of_counts="counters",
        latencies="turn_ms first_token_ms between_tokens_ms",
        histograms="first_token_s between_tokens_s",
    ),
    ("stage", "model", "version"),
)
STATUS = {"generation": rows(GENERATION)}
