"""The guards of a rollout: `p99<20ms,errors<1%,agree>0.98`.

Each guard is a bound for the share of *bad* observations: p99<20ms allows 1 % of the requests to
take 20 ms or more, errors<1% allows 1 % of failures, agree>0.98 allows 2 % of answers that are
unlike those of the version that serves. So one test judges all of them (`swarm.rollout.verdict`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from swarm.errors import InvalidArgument

Measure = Literal["latency", "errors", "agree"]

MOST_GUARDS = 8
EXAMPLE = "p99<20ms,errors<1%,agree>0.98"

_GUARD = re.compile(r"([a-z]+)([0-9.]*)\s*(<=?|>=?)\s*([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|%|)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class BadGuard(InvalidArgument):
    """A text that is no list of guards; the message has an example."""


@dataclass(frozen=True, slots=True)
class RolloutGuard:
    """One guard. text: as it was given. allowed: the greatest share of bad observations, 0..1.
    limit: seconds from which a request is too slow, 0.0 for other measures."""

    text: str
    measure: Measure
    allowed: float
    limit: float = 0.0

    def is_bad(self, seconds: float, failed: bool) -> bool:
        """Whether a request of this latency counts as bad. A failed one is slower than any limit.
        For `latency` and `errors`."""
        return failed or (self.measure == "latency" and seconds >= self.limit)


def parse_guards(text: str) -> tuple[RolloutGuard, ...]:
    """The guards of a text, separated by commas; () for "". Raises `BadGuard`."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if len(parts) > MOST_GUARDS:
        raise BadGuard(f"{len(parts)} guards: at most {MOST_GUARDS} are judged")
    guards = tuple(_guard(part) for part in parts)
    names = [(guard.measure, guard.allowed if guard.limit else 0.0) for guard in guards]
    for name, guard in zip(names, guards, strict=True):
        if names.count(name) > 1:
            raise BadGuard(f"guard {guard.text!r}: this measure is bounded twice; leave one out")
    return guards


def _guard(text: str) -> RolloutGuard:
    match = _GUARD.fullmatch(text)
    if match is None:
        raise BadGuard(f"guard {text!r} does not parse: write guards as {EXAMPLE}")
    name, digits, sign, number, unit = match.groups()
    value = float(number)
    if name == "p" and digits:
        return _latency(text, digits, sign, value, unit)
    if name == "errors" and not digits:
        share = _share(text, value, unit)
        if sign[0] != "<":
            raise BadGuard(f"guard {text!r}: errors are bounded from above, as errors<1%")
        return RolloutGuard(text, "errors", share)
    if name == "agree" and not digits:
        share = _share(text, value, unit)
        if sign[0] != ">":
            raise BadGuard(f"guard {text!r}: agreement is bounded from below, as agree>0.98")
        return RolloutGuard(text, "agree", round(1.0 - share, 9))
    raise BadGuard(
        f"guard {text!r}: {name + digits!r} is no measure; there are p50 to p99.9, errors, agree"
    )


def _latency(text: str, digits: str, sign: str, value: float, unit: str) -> RolloutGuard:
    try:
        percentile = float(digits)
    except ValueError:
        percentile = 0.0
    if not 1 <= percentile < 100:
        raise BadGuard(f"guard {text!r}: a percentile is above 1 and below 100, as p99<20ms")
    if sign[0] != "<":
        raise BadGuard(f"guard {text!r}: a latency is bounded from above, as p99<20ms")
    if unit not in _SECONDS or value <= 0:
        raise BadGuard(f"guard {text!r}: a latency is a time with its unit, as p99<20ms")
    return RolloutGuard(text, "latency", round(1.0 - percentile / 100, 9), value * _SECONDS[unit])


def _share(text: str, value: float, unit: str) -> float:
    if unit not in ("", "%"):
        raise BadGuard(f"guard {text!r}: a share is 1% or 0.01, without another unit")
    share = value / 100 if unit == "%" else value
    if not 0 <= share <= 1:
        raise BadGuard(f"guard {text!r}: a share is 0 to 1, or 0% to 100%")
    return share
