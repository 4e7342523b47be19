"""How many servers of a cluster keep what a mesh stores: raised where a cluster has grown."""

from __future__ import annotations

from swarm.features import features
from swarm.link import Link, jetstream
from swarm.subjects import Subjects


async def raise_all_replicas(link: Link, subjects: Subjects) -> list[str]:
    """Give keys, artifacts, dead letters and what features keep as many copies as new ones get
    (`jetstream.replicas_of`); returns the names of the streams that have more now. Lanes stay.

    Raises `ApiError`, `Unavailable`.
    """
    streams = (
        f"KV_{subjects.config_bucket}",
        f"OBJ_{subjects.models_bucket}",
        subjects.dead_stream,
        *(stream for each in features() for stream in each.streams(subjects)),
    )
    return [stream for stream in streams if await jetstream.raise_replicas(link, stream)]
