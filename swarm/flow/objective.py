"""A model's service level objective, and how fast its error budget burns.

Multi-window, multi-burn-rate alerts: Google, "The Site Reliability Workbook" (2018), chapter 5,
"Alerting on SLOs", section 6. A burn rate of 1 spends the budget exactly as fast as allowed. It
burns where a long window says that it matters and a short one that it still goes on: 14.4 over 1 h
and 5 min (2 % of a month's budget in an hour), or 6 over 6 h and 30 min (5 % in six hours).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swarm.errors import InvalidArgument

LATENCY, ERRORS = "latency", "errors"
LATENCY_BUDGET = 0.01  # of answers that may take longer than the p99
WINDOWS = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "6h": 21600.0}  # seconds
RULES = ((14.4, "1h", "5m"), (6.0, "6h", "30m"))  # burn rate, long window, short window
LEAST_BAD = 10
"""Bad requests in the short window below which nothing burns: where few ask, a single failure would
be a large share (the workbook's "Low-Traffic Services")."""
STEP_S = 30.0  # seconds between two counts that are kept
LARGEST_P99_MS = 600_000.0


@dataclass(frozen=True, slots=True)
class Objective:
    """p99_ms: 99 % of answers come within this time, milliseconds. errors: the share of requests,
    above 0 and below 1, that may fail. None where there is no such objective."""

    p99_ms: float | None = None
    errors: float | None = None

    def as_doc(self) -> dict[str, float]:
        """As desired state has it."""
        both = {"p99_ms": self.p99_ms, "errors": self.errors}
        return {name: value for name, value in both.items() if value is not None}

    def __str__(self) -> str:
        words = [] if self.p99_ms is None else [f"p99 {self.p99_ms:g} ms"]
        return ", ".join(words if self.errors is None else [*words, f"errors {self.errors:.4g}"])


def parse_objective(document: object) -> Objective:
    """The objective of `{"p99_ms": 20, "errors": 0.001}`, either field or both. Raises
    `InvalidArgument`."""
    both = (None, None)
    if isinstance(document, Mapping):
        both = document.get("p99_ms"), document.get("errors")
    if both == (None, None):
        raise InvalidArgument("must be an object with p99_ms, errors, or both")
    return Objective(
        _between(both[0], LARGEST_P99_MS, "p99_ms", "milliseconds"),
        _between(both[1], 1.0, "errors", "a share of requests"),
    )


def _between(value: object, below: float, name: str, unit: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < below:
        raise InvalidArgument(f"{name} must be {unit}, above 0 and below {below:g}")
    return float(value)


class Burn:
    """One model's requests, good and bad, and the burn rates of its objective. `count` each
    request; ask `judge` every few seconds. Moments are seconds of one clock.

    It keeps two counts a minute for six hours; before that much is known, all that is known counts.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.requests = 0
        self.slow = 0
        self.failed = 0
        self._kept: deque[tuple[float, int, int, int]] = deque(
            maxlen=int(WINDOWS["6h"] / STEP_S) + 2
        )

    def count(self, ok: bool, latency_ms: float) -> None:
        """A request was answered. ok: it did not fail by the mesh's fault."""
        self.requests += 1
        if not ok:
            self.failed += 1
        elif self.objective.p99_ms is not None and latency_ms > self.objective.p99_ms:
            self.slow += 1

    def keep(self, now: float) -> None:
        """Keep the present counts, if it is time to."""
        if not self._kept or now - self._kept[-1][0] >= STEP_S:
            self._kept.append((now, self.requests, self.slow, self.failed))

    def is_idle(self, now: float) -> bool:
        """Whether the counts reach back over the longest window, and it has no request."""
        longest = max(WINDOWS.values())
        times = [kept[0] for kept in self._kept]
        at = bisect_right(times, now - longest) - 1
        return at >= 0 and self._kept[at][1] == self.requests

    def rates(self, now: float) -> dict[str, dict[str, tuple[float, int]]]:
        """(burn rate, bad requests) of each window, by objective: `latency`, `errors`."""
        found: dict[str, dict[str, tuple[float, int]]] = {}
        times = [kept[0] for kept in self._kept]
        for window, seconds in WINDOWS.items():
            at = bisect_right(times, now - seconds) - 1
            before = self._kept[at][1:] if at >= 0 else (0, 0, 0)
            requests = self.requests - before[0]
            for name, bad, budget in (
                (LATENCY, self.slow - before[1], self.objective.p99_ms and LATENCY_BUDGET),
                (ERRORS, self.failed - before[2], self.objective.errors),
            ):
                if budget:
                    rate = bad / requests / budget if requests else 0.0
                    found.setdefault(name, {})[window] = (rate, bad)
        return found

    def judge(self, now: float) -> dict[str, Any]:
        """As status documents tell it: the objective, the larger burn rate of each window, the
        objectives that burn (`burning`, "" for none), and the counts since the start."""
        rates = self.rates(now)
        burning = [name for name, windows in rates.items() if burns(windows)]
        worst = {
            window: round(max(windows[window][0] for windows in rates.values()), 3)
            for window in WINDOWS
        }
        return self.objective.as_doc() | {
            "burning": ", ".join(burning),
            "burn": worst,
            "requests": self.requests,
            "slow": self.slow,
            "failed": self.failed,
        }


def burns(windows: Mapping[str, tuple[float, int]]) -> bool:
    """Whether an objective burns, by (burn rate, bad requests) of each window."""
    return any(
        windows[long][0] > rate and windows[short][0] > rate and windows[short][1] >= LEAST_BAD
        for rate, long, short in RULES
    )
