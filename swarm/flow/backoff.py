"""Pauses between attempts that fail one after the other: each is twice as long as the last one.

Full jitter spreads the attempts of clients that failed together (Brooker, "Exponential Backoff And
Jitter", AWS Architecture Blog, 2015): `pause = uniform(0, min(most, first * 2 ** n))`.
"""

from random import Random


class Backoff:
    """The pauses of one thing that is tried again and again.

    first: seconds, the first pause; most: seconds, the longest pause. rng: where it is given, each
    pause is drawn between zero and what it would be otherwise (full jitter).
    Raises ValueError unless 0 <= first <= most.
    """

    __slots__ = ("_first", "_most", "_next", "_rng")

    def __init__(self, first: float, most: float, rng: Random | None = None) -> None:
        if not 0 <= first <= most:
            raise ValueError(f"0 <= first <= most: {first=}, {most=}")
        self._first = self._next = first
        self._most = most
        self._rng = rng

    def next(self) -> float:
        """Seconds to pause now; the pause after this one is twice as long, up to `most`."""
        pause = self._next
        self._next = min(self._most, 2 * pause)
        return pause if self._rng is None else self._rng.uniform(0.0, pause)

    def reset(self) -> None:
        """It has succeeded: the next pause is the first one again."""
        self._next = self._first
