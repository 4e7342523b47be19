"""Pauses between attempts: exponential, fully jittered, inside the request's budget.

Full jitter spreads the retries of clients that failed together (Brooker, "Exponential Backoff And
Jitter", AWS Architecture Blog, 2015): `sleep = uniform(0, min(cap, base * 2 ** attempt))`.
"""

from random import Random

_LARGEST_EXPONENT = 62  # beyond it 2 ** n only overflows: every cap is long reached


def full_jitter(attempt: int, rng: Random, *, base_s: float = 0.010, cap_s: float = 1.0) -> float:
    """Seconds to pause before attempt number `attempt` + 1 (0: before the first retry).

    base_s: seconds, the ceiling of the first pause; cap_s: seconds, the ceiling of every pause.
    Raises ValueError for a negative attempt, base or cap.
    """
    if attempt < 0 or base_s < 0 or cap_s < 0:
        raise ValueError(f"negative: {attempt=}, {base_s=}, {cap_s=}")
    return rng.uniform(0.0, min(cap_s, base_s * float(2 ** min(attempt, _LARGEST_EXPONENT))))


def pause_within(
    attempt: int,
    remaining_s: float,
    needed_s: float,
    rng: Random,
    *,
    base_s: float = 0.010,
    cap_s: float = 1.0,
) -> float | None:
    """The same pause cut to what the budget allows, or None where another attempt is pointless.

    remaining_s: seconds of budget left; needed_s: seconds that an attempt usually takes (its p50).
    The pause always leaves `needed_s`.
    """
    spare = remaining_s - needed_s
    if remaining_s <= 0 or spare < 0:
        return None
    return full_jitter(attempt, rng, base_s=base_s, cap_s=min(cap_s, spare))
