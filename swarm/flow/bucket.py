"""Token buckets, and one per agent: a rogue agent spends its own share, never another's."""

from collections import OrderedDict
from math import inf

MAX_AGENTS = 4096  # remembered, about 300 bytes each
NEWCOMERS_PER_S = 100.0  # first requests of untracked agents admitted a second, in all


class TokenBucket:
    """Admits `rate` a second on average and `burst` at once.

    rate: tokens a second, >= 0. burst: most tokens held, > 0. Starts full, at the first time seen.
    Raises ValueError for a knob out of its range.
    """

    __slots__ = ("_at", "_tokens", "burst", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        if not (rate >= 0 and burst > 0):
            raise ValueError(f"rate >= 0 and burst > 0: {rate}, {burst}")
        self.rate = rate
        self.burst = burst
        self._tokens = burst
        self._at: float | None = None

    def tokens(self, now: float) -> float:
        """Tokens held at `now` (seconds); a clock that steps back changes nothing."""
        if self._at is None or now <= self._at:
            return self._tokens
        return min(self.burst, self._tokens + (now - self._at) * self.rate)

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Take `amount` tokens, all or none."""
        self._refill(now)
        if self._tokens < amount:
            return False
        self._tokens -= amount
        return True

    def wait(self, now: float, amount: float = 1.0) -> float:
        """Seconds until it holds `amount` tokens, if nobody takes any: `inf` for more than it ever
        holds."""
        lacking = amount - self.tokens(now)
        if lacking <= 0:
            return 0.0
        return lacking / self.rate if self.rate > 0 and amount <= self.burst else inf

    def spend(self, now: float, amount: float) -> None:
        """Take `amount` tokens, which the bucket may owe from then on."""
        self._refill(now)
        self._tokens -= amount

    def set_rate(self, rate: float, now: float) -> None:
        """Change the refill (tokens a second) from `now` (seconds) on."""
        if not rate >= 0:
            raise ValueError(f"rate >= 0: {rate}")
        self._refill(now)
        self.rate = rate

    def _refill(self, now: float) -> None:
        self._tokens = self.tokens(now)
        self._at = now if self._at is None else max(self._at, now)


class Quotas:
    """A token bucket per agent, for at most `MAX_AGENTS` agents.

    The agent seen longest ago is forgotten first. An agent not tracked must also take from one
    bucket that all newcomers share, and is tracked only once admitted: inventing names neither
    grows the memory nor pushes an agent out that asks at least every
    `MAX_AGENTS / NEWCOMERS_PER_S` seconds.

    rate, burst: tokens a second and at once, for each agent; burst >= 1.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        self._newcomers = TokenBucket(NEWCOMERS_PER_S, NEWCOMERS_PER_S)

    def __len__(self) -> int:
        """Agents remembered."""
        return len(self._buckets)

    def admit(self, agent: str, now: float) -> bool:
        """Take a token of the agent at `now` (seconds); False: it is over its quota."""
        bucket = self._buckets.get(agent)
        if bucket is not None:
            self._buckets.move_to_end(agent)
            return bucket.take(now)
        if not self._newcomers.take(now):
            return False
        bucket = self._buckets[agent] = TokenBucket(self._rate, self._burst)
        if len(self._buckets) > MAX_AGENTS:
            self._buckets.popitem(last=False)
        return bucket.take(now)

    def wait(self, agent: str, now: float) -> float:
        """Seconds until the agent, if it takes nothing meanwhile, is within its quota again."""
        return self._buckets.get(agent, self._newcomers).wait(now)


class Spending:
    """What agents spend of a rate, told once it is spent: an agent in debt waits until its rate has
    paid it off. The agent seen longest ago, of `MAX_AGENTS`, is forgotten first.

    burst: seconds of the rate that may be spent at once, > 0.
    """

    def __init__(self, burst: float = 10.0) -> None:
        self._burst = burst
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def owes(self, agent: str, now: float) -> float:
        """Seconds until an agent may spend again; 0.0 for one that may at `now`."""
        bucket = self._buckets.get(agent)
        if bucket is None or (tokens := bucket.tokens(now)) > 0:
            return 0.0
        return (1.0 - tokens) / bucket.rate

    def spend(self, agent: str, rate: float, amount: float, now: float) -> None:
        """An agent whose rate is `rate` a second, > 0, has spent `amount`."""
        bucket = self._buckets.get(agent)
        if bucket is None or bucket.rate != rate:
            bucket = self._buckets[agent] = TokenBucket(rate, rate * self._burst)
        self._buckets.move_to_end(agent)
        if len(self._buckets) > MAX_AGENTS:
            self._buckets.popitem(last=False)
        bucket.spend(now, amount)
