"""How long something usually takes: a mean in which the newest measurement counts most, and how
far measurements usually are from it (RFC 6298, 2)."""


class Usual:
    """An exponentially weighted moving average (EWMA) of durations, and of their deviation: O(1).

    start: seconds that are assumed before the first measurement. 0.0 assumes nothing: the first
        measurement counts whole.
    weight: of the newest measurement, above 0 and at most 1; larger follows faster.
    Raises ValueError for a weight outside.
    """

    __slots__ = ("_weight", "deviation", "known", "seconds")

    def __init__(self, start: float = 0.0, weight: float = 1 / 8) -> None:
        if not 0 < weight <= 1:
            raise ValueError(f"0 < weight <= 1: {weight}")
        self._weight = weight
        self.seconds = start
        """The usual duration in seconds."""
        self.deviation = 0.0
        """Seconds by which a measurement usually differs from `seconds`."""
        self.known = start > 0
        """Whether `seconds` rests on a start or a measurement."""

    def add(self, seconds: float) -> None:
        """Learn that it took `seconds` this time."""
        if self.known:
            off = seconds - self.seconds
            self.seconds += off * self._weight
            self.deviation += (abs(off) - self.deviation) / 4
        else:
            self.seconds, self.known = seconds, True
