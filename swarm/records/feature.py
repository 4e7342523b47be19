"""What was asked, by hashes or whole, and running it again."""

from __future__ import annotations

from swarm.feature import MeshFeature, rows

FEATURE = MeshFeature(
    "records",
    rights={
        "swarm.{mesh}.drain.{user}.*": rows(
            """
# An edge, a shard and a gateway write what they know of; only the operator reads it.
swarm.{mesh}.audit.* | answerers shards operator | operator |\
 who asked what, and what an operator did
swarm.{mesh}.tap.> | | operator | copies of features, from the server, while `swarm record` runs
swarm.{mesh}.record.> | operator | | recorded requests
"""
        ),
    },
    stored=["audit", "record"],
    stored_news=["audit"],
    news=["tap"],
    taps="tap",
    streams=lambda subjects: [subjects.stream_of("audit")],
)
