"""What was asked, by hashes or whole, and running it again."""

from __future__ import annotations

from swarm.feature import MeshFeature, Row

FEATURE = MeshFeature(
    "records",
    rights={
        "swarm.{mesh}.drain.{user}.*": [
            # An edge, a shard and a gateway write what they know of; only the operator reads it.
            Row(
                "swarm.{mesh}.audit.*",
                "who asked what, and what an operator did",
                publish={"answerers", "shards", "operator"},
                subscribe={"operator"},
            ),
            Row(
                "swarm.{mesh}.tap.>",
                "copies of features, from the server, while `swarm record` runs",
                subscribe={"operator"},
            ),
            Row("swarm.{mesh}.record.>", "recorded requests", publish={"operator"}),
        ],
    },
    stored=["audit", "record"],
    stored_news=["audit"],
    news=["tap"],
    taps="tap",
    streams=lambda subjects: [subjects.stream_of("audit")],
)
