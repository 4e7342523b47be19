"""A request's budget: whether what is left of it is worth starting for.

A budget is a duration, never a point in time: the clocks of devices differ. Each hop subtracts what
it measured with its own clock (gRPC's `grpc-timeout` does the same).
"""


def should_start(remaining_s: float, p50_s: float, enabled: bool = True) -> bool:
    """Whether work that takes `p50_s` (seconds) at the median is worth starting.

    enabled: True drops what would more likely than not finish too late; False drops only what is
    out of budget already.
    """
    return remaining_s > 0 and (not enabled or remaining_s >= p50_s)
