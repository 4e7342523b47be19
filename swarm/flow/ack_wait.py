"""How long a lane waits for an ack before it delivers again, and how much it asks for."""

import math

FLOOR_S = 0.060
"""Measured: one pull of batch 1 with ack_wait 60 ms handed a killed node's message on in 62 ms."""
CEILING_S = 30.0
"""Above this a run is kept alive by `in_progress`, never by a longer wait."""
FACTOR = 4.0
"""Times the p99; larger means fewer needless redeliveries and a slower takeover."""
HYSTERESIS = 1.5
LINK_MARGIN = 1.5
"""A node says first after a third of `ack_wait` that it works: two thirds are left for the link."""
SLOW_TRANSFER_S = 0.020
"""A message that is on its way for so long is large for its link: less is asked for in advance."""
IDLE_SHARE = 0.1
"""The share of time that a slow link may stand idle, for one message less in advance."""


def ack_wait_for(
    p99_s: float,
    *,
    ceiling: float = CEILING_S,
    current: float | None = None,
    link: float = 0.0,
) -> float:
    """Seconds of `ack_wait` for a stage whose hop takes `p99_s` (seconds) at the 99th percentile.

    ceiling: seconds; the result lies between `FLOOR_S` and it.
    current: seconds in force now, if any. It is kept unless the new value differs by more than
        `HYSTERESIS` times: each change updates a consumer on the server.
    link: seconds that the slowest link of the lane's nodes needs (`link_wait`); the result is
        never shorter, and longer than `ceiling` only for it, up to `CEILING_S`.
    Raises ValueError for a ceiling below the floor or a NaN.
    """
    if not (ceiling >= FLOOR_S and p99_s == p99_s):
        raise ValueError(f"{ceiling=} >= {FLOOR_S}, {p99_s=}")
    least = min(link, CEILING_S)
    wanted = max(min(ceiling, max(FLOOR_S, FACTOR * p99_s)), least)
    if current is not None and max(FLOOR_S, least) <= current <= max(ceiling, least):
        larger, smaller = max(wanted, current), min(wanted, current)
        if larger <= smaller * HYSTERESIS:
            return current
    return wanted


def link_wait(round_trip: float, transfer: float, credit: int) -> float:
    """Seconds of `ack_wait` that a link needs, `CEILING_S` at most.

    round_trip: seconds, without a message's size. transfer: seconds that one message takes at the
    link's rate. credit: messages that may be on their way at once, 1 at least; the answer goes
    back before the ack, and counts as one message more.
    Raises ValueError for a negative time, a NaN or a credit below 1.
    """
    if not (round_trip >= 0 and transfer >= 0 and credit >= 1):
        raise ValueError(f"{round_trip=} >= 0, {transfer=} >= 0, {credit=} >= 1")
    return min(CEILING_S, LINK_MARGIN * (round_trip + (credit + 1) * transfer))


def link_credit(round_trip: float, transfer: float, holding: float) -> int | None:
    """Messages that keep a slow link busy, 1 at least; None where messages pass quickly.

    While one message is worked on (`holding` seconds) and asked for anew (`round_trip`), others
    use the link. One more would only wait on it, and be held back when this node dies.
    round_trip, transfer: as for `link_wait`. Raises ValueError for a negative time or a NaN.
    """
    if not (round_trip >= 0 and transfer >= 0 and holding >= 0):
        raise ValueError(f"{round_trip=}, {transfer=} and {holding=} >= 0")
    if transfer < SLOW_TRANSFER_S:
        return None
    return max(1, math.ceil((transfer + round_trip + holding) / transfer - IDLE_SHARE))
