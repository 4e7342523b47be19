"""Whether a stage takes one more message, and whether it begins a run: pure decisions."""

from __future__ import annotations

from swarm.transport.api import Room

# Parcels in hand and messages in the lanes, and seconds of work that waits here or there, up to
# which more is taken from this host. (Each sender hands over a second of work at most, but there
# may be many.)
MOST_AT_HAND = 256
MOST_WORK_AT_HAND = 1.0
# Seconds of work in the lanes that a message of this host may overtake.
MOST_OVERTAKEN = 0.002
# Requests that may wait here in fast mode: no lane bounds them.
MOST_WAITING_FAST = 64


def room_for_parcel(*, parcels: int, in_lanes: int, waiting: int, run: float, closed: bool) -> Room:
    """For a message that a process of this host hands over. It may wait here, but not overtake the
    messages of a lane, which are asked for first.

    parcels: messages in hand that processes of this host handed over. in_lanes: messages that wait
    in the stage's lanes. waiting: requests that wait here for a run. run: usual seconds of a run.
    closed: the stage is paused or ends, or counts requests against quotas, which lanes do.
    """
    if closed or parcels + in_lanes >= MOST_AT_HAND:
        return Room.NONE
    if (waiting + in_lanes) * run > MOST_WORK_AT_HAND:
        return Room.NONE
    return Room.BEHIND_LANES if in_lanes * run > MOST_OVERTAKEN else Room.FREE


def room_for_fast(waiting: int) -> Room:
    """For a message of the fast queue. waiting: requests that wait here for a run."""
    return Room.NONE if waiting >= MOST_WAITING_FAST else Room.FREE


def is_worth_starting(left: float, usual: float) -> bool:
    """Whether a run is begun for a request that has `left` seconds of its budget. usual: seconds of
    a run; 0.0 begins whatever has any budget left."""
    return left > 0 and left >= usual
