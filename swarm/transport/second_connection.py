"""Whether large messages get a connection of their own, by how far the server is. Pure.

On a slow link a small message waits behind the large ones before it. On a near server it does not,
and a second connection would be a cost without a gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from swarm.errors import InvalidArgument
from swarm.flow.transfers import NEAR_S

AUTO, ON, OFF = "auto", "on", "off"
SETTINGS = (AUTO, ON, OFF)
MOST_TRIPS = 6
"""Round trips, of which the least is believed: a busy machine answers some late, hardly all."""
LONGEST_S = 0.3
"""Seconds of round trips after which no more are measured: no near server is as slow as that."""


class ConnectionStep(Enum):
    """What to do next, once the first connection stands."""

    MEASURE = "measure one more round trip"
    ONE = "one connection"
    TWO = "two connections"


def checked_setting(given: str | bool) -> str:
    """The setting `--two-connections`, checked; True and False stand for on and off. Raises
    `InvalidArgument`."""
    if isinstance(given, bool):
        return ON if given else OFF
    if given not in SETTINGS:
        raise InvalidArgument(f"--two-connections {given!r}: it is one of {', '.join(SETTINGS)}")
    return given


def next_step(setting: str, trips: Sequence[float]) -> ConnectionStep:
    """trips: round trips to the server so far, in seconds, by order. One that is short shows a near
    server, however long the others were: those met a busy machine."""
    if setting != AUTO:
        return ConnectionStep.TWO if setting == ON else ConnectionStep.ONE
    if any(trip <= NEAR_S for trip in trips):
        return ConnectionStep.ONE
    if len(trips) >= MOST_TRIPS or sum(trips) >= LONGEST_S:
        return ConnectionStep.TWO
    return ConnectionStep.MEASURE
