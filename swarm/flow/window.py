"""A count over the last few seconds, in fixed memory."""


class SlidingCount:
    """How much was added in about the last `window_s` seconds: O(1) amortised, `slices` integers.

    Time is cut into slices of `window_s / slices` seconds and whole slices expire, so that a total
    covers between `window_s * (1 - 1 / slices)` and `window_s` seconds. A clock that steps back
    counts into the newest slice: nothing is ever counted twice.

    window_s: seconds remembered; longer is smoother and slower to forget.
    slices: resolution of forgetting; more is finer and costs memory.
    """

    __slots__ = ("_newest", "_slice_s", "_slots", "_sum", "window_s")

    def __init__(self, window_s: float = 10.0, slices: int = 10) -> None:
        self.window_s = window_s
        self._slice_s = window_s / slices
        self._slots = [0] * slices
        self._sum = 0
        self._newest: int | None = None

    def add(self, amount: int, now: float) -> None:
        """Count `amount` at `now` (seconds)."""
        slot = self._turn(now)
        self._slots[slot] += amount
        self._sum += amount

    def total(self, now: float) -> int:
        """What the window holds at `now` (seconds)."""
        self._turn(now)
        return self._sum

    def clear(self) -> None:
        """Forget everything."""
        self._slots = [0] * len(self._slots)
        self._sum = 0

    def _turn(self, now: float) -> int:
        slots = self._slots
        current = int(now // self._slice_s)
        newest = self._newest
        if newest is None:
            newest = self._newest = current
        elif current > newest:
            for expired in range(newest + 1, min(current, newest + len(slots)) + 1):
                slot = expired % len(slots)
                self._sum -= slots[slot]
                slots[slot] = 0
            newest = self._newest = current
        return newest % len(slots)
