"""What the server is told of a model's lanes: one WorkQueue stream a model version, one
consumer a lane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swarm.lanes.pulls import GROUP
from swarm.link import Link, jetstream
from swarm.subjects import ANY, Subjects

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """How the lanes of a model version are kept. Times in seconds.

    depth: messages a lane holds, the unacked ones included; one more is refused at once.
    ack_wait: silence after which a message is handed to another node. storage: `memory`
    (a server restart loses what is queued; requesters retry) or `file`. max_age: when an
    abandoned message goes. duplicates: how long a message id is remembered; more than the
    worst redelivery, which is a few ack_waits.
    """

    depth: int = 256
    ack_wait: float = 0.1
    storage: str = "memory"
    replicas: int = 1
    max_age: float = 120.0
    duplicates: float = 30.0


def stream_config(
    subjects: Subjects, model: str, version: str, options: LaneOptions
) -> dict[str, Any]:
    return {
        "name": subjects.stream(model, version),
        "subjects": [subjects.features_of(model, version)],
        "retention": "workqueue",
        "storage": options.storage,
        "num_replicas": options.replicas,
        "discard": "new",
        "discard_new_per_subject": True,
        "max_msgs_per_subject": options.depth,
        "max_age": int(options.max_age * NS),
        "duplicate_window": int(min(options.duplicates, options.max_age) * NS),
    }


def consumer_config(
    subjects: Subjects, model: str, version: str, stage: int, options: LaneOptions, lane: str = ANY
) -> dict[str, Any]:
    return {
        "durable_name": subjects.consumer(stage, lane),
        "filter_subject": subjects.features(model, version, stage, lane),
        "ack_policy": "explicit",
        "ack_wait": int(options.ack_wait * NS),
        # Poison is counted and dead-lettered by the node that gets it once too often: only
        # a node can tell the requester.
        "max_deliver": -1,
        "max_ack_pending": 4096,
        "priority_groups": [GROUP],
        "priority_policy": "prioritized",
        "mem_storage": options.storage == "memory",
        "num_replicas": options.replicas,
    }


async def ensure_lanes(
    link: Link, subjects: Subjects, model: str, version: str, options: LaneOptions
) -> None:
    """The model version's stream, and the mesh's stream of dead letters."""
    await jetstream.ensure_stream(link, stream_config(subjects, model, version, options))
    await jetstream.ensure_stream(
        link,
        {
            "name": subjects.dead_stream,
            "subjects": [subjects.dead_all],
            "storage": "file",
            "max_msgs": 10_000,
            "max_bytes": 256 << 20,
            "max_age": 7 * 24 * 3600 * NS,
            "discard": "old",
        },
    )
