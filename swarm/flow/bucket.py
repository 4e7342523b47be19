"""Token buckets, and one per agent: a rogue agent spends its own share, never another's."""

from collections import OrderedDict
from collections.abc import Mapping
from math import inf


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
        at = self._at
        if at is None:
            self._at = now
        elif now > at:
            self._tokens = min(self.burst, self._tokens + (now - at) * self.rate)
            self._at = now
        return self._tokens

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Take `amount` tokens, all or none."""
        if self.tokens(now) < amount:
            return False
        self._tokens -= amount
        return True

    def wait_s(self, now: float, amount: float = 1.0) -> float:
        """Seconds until `amount` could be taken: 0.0 for now, inf for never."""
        missing = amount - self.tokens(now)
        if missing <= 0:
            return 0.0
        if amount > self.burst or self.rate == 0:
            return inf
        return missing / self.rate

    def set_rate(self, rate: float, now: float) -> None:
        """Change the refill (tokens a second) from `now` (seconds) on."""
        if not rate >= 0:
            raise ValueError(f"rate >= 0: {rate}")
        self.tokens(now)
        self.rate = rate


class Quotas:
    """A token bucket per agent, for at most `max_agents` agents.

    The agent seen longest ago is forgotten first. An agent not tracked must also take from one
    bucket that all newcomers share, and is tracked only once admitted: inventing names neither
    grows the memory nor pushes an agent out that asks at least every
    `max_agents / newcomers_per_s` seconds.

    rate, burst: tokens a second and at once, for an agent without limits of its own.
    limits: agent -> (rate, burst), for those with.
    max_agents: agents remembered, about 300 bytes each.
    newcomers_per_s: first requests of untracked agents admitted a second, in all.
    Raises ValueError for a knob out of its range.
    """

    def __init__(
        self,
        rate: float = 100.0,
        burst: float = 200.0,
        *,
        limits: Mapping[str, tuple[float, float]] | None = None,
        max_agents: int = 4096,
        newcomers_per_s: float = 100.0,
    ) -> None:
        if max_agents < 1:
            raise ValueError(f"max_agents >= 1: {max_agents}")
        TokenBucket(rate, burst)
        for own_rate, own_burst in (limits or {}).values():
            TokenBucket(own_rate, own_burst)
        self._default = (rate, burst)
        self._limits = dict(limits or {})
        self._max_agents = max_agents
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        self._newcomers = TokenBucket(newcomers_per_s, max(1.0, newcomers_per_s))

    def __len__(self) -> int:
        return len(self._buckets)

    def admit(self, agent: str, now: float, amount: float = 1.0) -> bool:
        """Take `amount` tokens of the agent at `now` (seconds); False: over its quota."""
        bucket = self._buckets.get(agent)
        if bucket is not None:
            self._buckets.move_to_end(agent)
            return bucket.take(now, amount)
        bucket = TokenBucket(*self._limits.get(agent, self._default))
        if bucket.burst < amount or not self._newcomers.take(now):
            return False
        self._buckets[agent] = bucket
        if len(self._buckets) > self._max_agents:
            self._buckets.popitem(last=False)
        return bucket.take(now, amount)

    def retry_after_s(self, agent: str, now: float, amount: float = 1.0) -> float:
        """Seconds until `admit` could say yes: 0.0 for now, inf for never."""
        bucket = self._buckets.get(agent)
        if bucket is not None:
            return bucket.wait_s(now, amount)
        _, burst = self._limits.get(agent, self._default)
        return inf if burst < amount else self._newcomers.wait_s(now)
