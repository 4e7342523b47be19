"""Lanes in memory whose server was lost are made anew on another server of the cluster.

What a lost lane held is with its requesters still, who ask again. One node makes a lane anew, by
rendezvous over the living nodes of its model version: no election, no messages. Where that node
does not, the next one does after a while.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Any

from swarm.errors import SwarmError
from swarm.link import Link, jetstream
from swarm.routing.rendezvous import rendezvous
from swarm.subjects import api

# Seconds for which a lane is lost before the first node makes it anew, and each further node. A
# server that restarts takes longer to be back; a node that was first, and moves its own connection,
# is back by then.
FIRST_AFTER, NEXT_AFTER = 0.1, 2.0
TRY_EVERY = 0.3  # seconds between attempts of one node
# Seconds. A leader cannot answer for the lost server, but does what it is told.
DELETE_TIMEOUT, CREATE_TIMEOUT = 0.25, 0.75


def is_due(stream: str, node: str, nodes: Iterable[str], lost_for: float) -> bool:
    """Whether this node is to make the lost lanes of a stream anew. nodes: those that live, and may
    do it; this one belongs to them. lost_for: seconds."""
    turn = rendezvous(stream, {node, *nodes}).index(node)
    return lost_for >= FIRST_AFTER + NEXT_AFTER * turn


async def make_anew(link: Link, config: dict[str, Any], least: int = 0) -> None:
    """Delete the stream whose server is lost, and create it where servers live. config: of the
    stream. least: bytes that it holds at least. Consumers follow by whoever serves a lane.

    Its numbers begin with the time: when the lost server comes back, it has the old stream under
    the same name for a moment, and an ack for a message of the one must mean none of the other.

    Raises `ApiError`, `Unavailable`, `NotConnected`, `ResourceExhausted`; it may have worked all
    the same.
    """
    name = config["name"]
    config = config | {"first_seq": time.time_ns() // 1000}
    with contextlib.suppress(SwarmError):
        # The answer would come from the lost server.
        await jetstream.call(link, api("STREAM.DELETE", name), timeout=DELETE_TIMEOUT)
    create = api("STREAM.CREATE", name)

    async def store(config: dict[str, Any]) -> dict[str, Any]:
        return await jetstream.call(link, create, config, timeout=CREATE_TIMEOUT)

    await jetstream.within_room(store, config, least)
