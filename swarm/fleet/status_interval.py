"""How often nodes publish their status, and how long a silence has to last to count. Pure.

Each status costs the server and every reader one document, whoever says it. A fleet of up to a
thousand nodes carries a hundred documents a second: above a hundred nodes each one speaks more
seldom, and says how often. In a larger fleet each one still speaks every ten seconds. Whoever needs
all documents soon asks for them, within a time in which the nodes answer one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import ceil
from typing import Any

from swarm.periodic import BEAT

STATUS_EVERY = 5 * BEAT  # seconds between two statuses of a node, in fleets of up to a hundred
MOST_EVERY = 10.0  # seconds, in the largest fleets
DOCUMENTS_PER_SECOND = 100  # of a whole fleet
LONGEST_BELIEVED = 30.0  # seconds; a member can publish any figure
MISSED = 3  # statuses that did not come when a node counts as silent
SMALL_FLEET = 32  # nodes that may all speak at once; more of them would be a storm
MOST_WITHIN = 5.0  # seconds, of a request
LARGEST_REQUEST = 256  # bytes


def status_every(nodes: int) -> float:
    """Seconds between two statuses of one node, in a fleet of so many living nodes: whole beats."""
    beats = ceil(nodes / (DOCUMENTS_PER_SECOND * BEAT))
    return min(MOST_EVERY, max(STATUS_EVERY, round(beats * BEAT, 3)))


def every_of(status: Mapping[str, Any]) -> float:
    """The seconds after which a node speaks again, as far as its status can be believed; one that
    says nothing about that speaks each second."""
    every = status.get("every_s")
    if isinstance(every, int | float) and every > STATUS_EVERY:  # no comparison with a NaN holds
        return float(min(LONGEST_BELIEVED, every))
    return STATUS_EVERY


def silent_after(status: Mapping[str, Any]) -> float:
    """Seconds after this status at which its node has missed three statuses."""
    return MISSED * every_of(status)


# --- requests -----------------------------------------------------------------------------------


def request_body(within: float) -> bytes:
    """A request for statuses within so many seconds; empty where they are to come at once."""
    return json.dumps({"within_s": within}).encode() if within > 0 else b""


def asked_within(body: bytes | memoryview) -> float:
    """The seconds within which statuses are asked for: 0, which is at once, where the body says
    nothing that can be."""
    if not 0 < len(body) <= LARGEST_REQUEST:
        return 0.0
    try:
        within = json.loads(bytes(body))["within_s"]
    except (ValueError, KeyError, TypeError):
        return 0.0
    if isinstance(within, int | float) and within > 0 and not isinstance(within, bool):
        return float(min(MOST_WITHIN, within))
    return 0.0


def answer_after(within: float, nodes: int, chance: float) -> float:
    """Seconds until a node answers such a request. nodes: that live; few may all answer at once.
    chance: from 0 to 1, each node's own."""
    return 0.0 if nodes <= SMALL_FLEET else chance * within
