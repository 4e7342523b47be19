"""Which way a request takes: the fastest that may be taken, by figures that are learned. Pure.

The choice holds until another way is faster by a margin (*hysteresis*). How fast the ways are that
are not taken is learned by *probes*: now and then a copy of a request goes by another way, and its
answer is thrown away. So a probe keeps no request waiting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from nodes.placing.link_time import LinkTime
from nodes.placing.ways import AUTO, NOWHERE, FeaturePrivacy, RequestWay


@dataclass(frozen=True, slots=True)
class PlacementConfig:
    """When a way is left, and how often others are tried. Times in seconds."""

    margin: float = 0.05
    """Share of the present way's time by which another one has to be faster."""

    least_gain: float = 0.0003
    """The least such time."""

    stays: float = 0.5
    """Time for which a way that fits the budget is kept after a change."""

    probe_share: float = 0.02
    """Most probes, as a share of the requests."""

    probe_after: float = 1.0
    """Time for which a way was not taken, until it is tried."""

    probe_budgets: float = 2.0
    """A way that is expected to take so many budgets is not tried."""

    follows: float = 0.2
    """Weight of a new time against the known one …"""

    follows_old: float = 0.7
    """… and against one that is older than `old`."""

    old: float = 5.0


DEFAULTS = PlacementConfig()
NOTHING_STAYS = FeaturePrivacy(picture=True)


@dataclass(frozen=True, slots=True)
class PlacingFacts:
    """What is known when a request comes; times in seconds.

    budget: of the request. connected: whether a server is there. round_trip, rate (bytes a second,
    0.0 for not known) and backlog (of what is on its way) of the link. local_wait: of the work here
    before this request. remote: time of each stage in the mesh, with the queue before it; a stage
    that no node serves is not in it. pictures: whether all nodes of stage 1 decode pictures.
    """

    budget: float
    connected: bool = True
    round_trip: float = 0.0
    rate: float = 0.0
    backlog: float = 0.0
    local_wait: float = 0.0
    remote: Mapping[int, float] = field(default_factory=dict)
    pictures: bool = False


@dataclass(frozen=True, slots=True)
class ChosenWay:
    """way, and why; predicted: seconds until its answer, infinity where none is to be expected.
    facts: by which it was chosen. probe: another way, which a copy is to take, if any."""

    way: RequestWay
    why: str
    predicted: float
    facts: PlacingFacts
    probe: RequestWay | None = None


class _Time:
    """A time that is learned; seconds. at: when it was last."""

    __slots__ = ("at", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds, self.at = seconds, -inf

    def took(self, seconds: float, now: float, config: PlacementConfig) -> None:
        follows = config.follows_old if now - self.at > config.old else config.follows
        self.seconds += follows * (seconds - self.seconds)
        self.at = now


class EdgeWays:
    """The ways of one model version of `last` stages at one edge.

    mode: `AUTO`, or the kind or the name of the ways to be taken. local: seconds of each stage
    here, as far as they are known beforehand. `choose` for each request, `ran` for each stage that
    was run here, `ended` for each request and each probe. taken: requests by way. probes: since the
    start. why: of the last choice.
    """

    def __init__(
        self,
        ways: Sequence[RequestWay],
        last: int,
        local: Mapping[int, float],
        mode: str = AUTO,
        privacy: FeaturePrivacy = NOTHING_STAYS,
        config: PlacementConfig = DEFAULTS,
    ) -> None:
        self._config = config
        self._last = last
        self.ways = tuple(
            way for way in ways if privacy.allows(way) and mode in (AUTO, way.kind, way.name)
        )
        self.taken = {way.name: 0 for way in self.ways}
        self.probes = 0
        self.why = ""
        self._link = LinkTime()
        self._local = {stage: _Time(seconds) for stage, seconds in local.items()}
        # Seconds beyond the prediction.
        self._beyond = {way.name: _Time(0.0) for way in self.ways}
        self._tried_at = {way.name: -inf for way in self.ways}
        self._present: RequestWay | None = None
        self._since = -inf
        self._requests = 0

    @property
    def whole(self) -> RequestWay | None:
        """The way that computes all here, if it may be taken."""
        return next((way for way in self.ways if way.entry == NOWHERE), None)

    def here(self, way: RequestWay) -> float:
        """Usual seconds of a way's stages here."""
        return sum([self._local[stage].seconds for stage in way.local if stage in self._local])

    def choose(self, facts: PlacingFacts, now: float) -> ChosenWay | None:
        """The way of a request that comes at `now`; None where no way may be taken."""
        if not self.ways:
            return None
        self._link.round_trip = facts.round_trip
        self._link.prior(facts.rate)
        times = {way.name: self._time(way, facts) for way in self.ways}
        way, self.why = self._usual(times, facts, now)
        self._requests += 1
        self.taken[way.name] += 1
        self._tried_at[way.name] = now
        return ChosenWay(way, self.why, times[way.name], facts, self._probe(way, times, facts, now))

    def _time(self, way: RequestWay, facts: PlacingFacts) -> float:
        """Seconds until an answer by this way."""
        return max(0.0, self._expected(way, facts) + self._beyond[way.name].seconds)

    def _expected(self, way: RequestWay, facts: PlacingFacts) -> float:
        here = self.here(way) + (facts.local_wait if way.local else 0.0)
        if way.entry == NOWHERE:
            return here
        if not facts.connected or (way.as_picture and not facts.pictures):
            return inf
        stages = [facts.remote.get(stage, inf) for stage in range(way.entry, self._last + 1)]
        return here + facts.backlog + self._link.of(way.sent + way.answered) + sum(stages)

    def _usual(
        self, times: Mapping[str, float], facts: PlacingFacts, now: float
    ) -> tuple[RequestWay, str]:
        """The way of a request, and why."""
        best = min(self.ways, key=lambda way: (times[way.name], way.entry != NOWHERE))
        fastest, present, config = times[best.name], self._present, self._config
        if fastest == inf:
            # Nobody is known to answer: whoever is asked may be there all the same.
            why = "no node is known for its stages" if facts.connected else "no connection"
            return self._take(best, now), why
        if present is None or present is best or times[present.name] == inf:
            return self._take(best, now), self._reason(best, times, facts)
        kept = times[present.name]
        has_settled = now - self._since >= config.stays or kept > facts.budget
        is_slower = kept - fastest > max(config.least_gain, config.margin * kept)
        if is_slower and (has_settled or kept > 2 * fastest):
            return self._take(best, now), self._reason(best, times, facts)
        return present, f"kept, {_ms(kept)}: {best.name} is little faster, {_ms(fastest)}"

    def _take(self, way: RequestWay, now: float) -> RequestWay:
        if way is not self._present:
            self._present, self._since = way, now
        return way

    def _reason(self, best: RequestWay, times: Mapping[str, float], facts: PlacingFacts) -> str:
        others = [way for way in self.ways if way is not best]
        if not others:
            return "the only way that may be taken"
        time, second = times[best.name], min(others, key=lambda way: times[way.name])
        if times[second.name] == inf:
            lacks = "no node serves the stages behind" if facts.connected else "no connection"
            return f"{_ms(time)}, the only way: {lacks}"
        late = "" if time <= facts.budget else "; none fits the budget"
        return f"fastest, {_ms(time)}; {second.name}: {_ms(times[second.name])}{late}"

    def _probe(
        self, present: RequestWay, times: Mapping[str, float], facts: PlacingFacts, now: float
    ) -> RequestWay | None:
        """Another way, to learn how long it takes at present; None for none."""
        config = self._config
        if self.probes + 1 > config.probe_share * self._requests:
            return None
        due = [
            way
            for way in self.ways
            if way is not present
            and now - self._tried_at[way.name] >= config.probe_after
            and times[way.name] <= config.probe_budgets * facts.budget
        ]
        if not due:
            return None
        way = min(due, key=lambda way: (self._tried_at[way.name], times[way.name]))
        self.probes += 1
        self._tried_at[way.name] = now
        return way

    def ran(self, stage: int, seconds: float, now: float) -> None:
        """A stage was run here."""
        self._local.setdefault(stage, _Time(seconds)).took(seconds, now, self._config)

    def ended(
        self,
        way: RequestWay,
        facts: PlacingFacts,
        seconds: float,
        on_way: float | None,
        now: float,
        failed: bool = False,
    ) -> None:
        """A request, or a probe, ended after so many seconds.

        on_way: its seconds between here and the stages of the mesh, None where that is not known.
        facts: of its choice. failed: in a way in which another one might have done: it counts as if
        it had taken the whole budget.
        """
        if way.entry != NOWHERE and on_way is not None:
            alone = max(0.0, on_way - facts.backlog)
            self._link.took(way.sent + way.answered, alone, now)
        expected = self._expected(way, facts)
        if expected < inf:
            beyond = min(max(seconds - expected, -0.5 * expected), expected)
            if failed:
                beyond = max(beyond, facts.budget)
            self._beyond[way.name].took(beyond, now, self._config)


def _ms(seconds: float) -> str:
    return "never" if seconds == inf else f"{seconds * 1e3:.3g} ms"
