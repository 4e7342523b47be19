"""How long a lane waits for an ack before it delivers again."""

FLOOR_S = 0.060
"""Measured: one pull of batch 1 with ack_wait 60 ms handed a killed node's message on in 62 ms."""
CEILING_S = 30.0
"""Above this a run is kept alive by `in_progress`, never by a longer wait."""


def ack_wait_for(
    p99_s: float,
    floor: float = FLOOR_S,
    factor: float = 4.0,
    ceiling: float = CEILING_S,
    *,
    current: float | None = None,
    hysteresis: float = 1.5,
) -> float:
    """Seconds of `ack_wait` for a stage whose hop takes `p99_s` (seconds) at the 99th percentile.

    factor: times the p99; larger means fewer needless redeliveries and a slower takeover.
    floor, ceiling: seconds; the result lies between them.
    current: seconds in force now, if any. It is kept unless the new value differs by more than
        `hysteresis` times: each change updates a consumer on the server.
    Raises ValueError for floor > ceiling, floor <= 0, hysteresis < 1 or a NaN.
    """
    if not (0 < floor <= ceiling and hysteresis >= 1 and factor > 0 and p99_s == p99_s):
        raise ValueError(f"0 < {floor=} <= {ceiling=}, {hysteresis=} >= 1, {factor=} > 0, {p99_s=}")
    wanted = min(ceiling, max(floor, factor * p99_s))
    if current is not None and floor <= current <= ceiling:
        larger, smaller = max(wanted, current), min(wanted, current)
        if larger <= smaller * hysteresis:
            return current
    return wanted
