"""The plan of a rollout, as an operator signs it once, inside desired state:

    {"id": "01J…", "version": "2", "canary": 10, "step": 10, "every_s": 60,
     "guard": "p99<20ms,errors<1%", "samples": 50, "shadow": 5, "agree": "top-1"}

The version begins with `canary` percent of the traffic. While the guards hold it gets `step`
percent more each `every_s` seconds. When the step of 100 % has held for as long, the rollout is
done.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from swarm.errors import InvalidArgument
from swarm.rollout.agreement import Agreement, parse_agreement
from swarm.rollout.guards import RolloutGuard, parse_guards
from swarm.subjects import TOKEN

LEAST_EVERY, MOST_EVERY = 0.5, 30 * 24 * 3600.0  # seconds
MOST_SAMPLES = 1_000_000
SAMPLES = 50
STEP = "10%/1m"

_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%?")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """A plan that passed `parse_plan`. Shares are in percent, 0..100.

    samples: observations before which a guard says nothing good, and for each further step. shadow:
    the share of the present version's requests whose copies the new one works on.
    """

    id: str
    version: str
    canary: float
    step: float
    every: float
    guards: tuple[RolloutGuard, ...] = ()
    samples: int = SAMPLES
    shadow: float = 0.0
    agreement: Agreement = field(default_factory=Agreement)

    @property
    def last_step(self) -> int:
        """The number of the step with 100 %; the canary's is 0."""
        return ceil(round((100.0 - self.canary) / self.step, 6))

    @property
    def lasts(self) -> float:
        """Seconds from the first canary request to the end, if the guards hold throughout."""
        return (self.last_step + 1) * self.every

    def document(self) -> dict[str, Any]:
        """As it stands in desired state."""
        return {
            "id": self.id,
            "version": self.version,
            "canary": self.canary,
            "step": self.step,
            "every_s": self.every,
            "guard": ",".join(guard.text for guard in self.guards),
            "samples": self.samples,
            "shadow": self.shadow,
            "agree": self.agreement.text,
        }


def plan_of(
    id: str,
    version: str,
    canary: str,
    step: str = STEP,
    guard: str = "",
    shadow: str = "",
    samples: int = SAMPLES,
    agree: str = "",
) -> RolloutPlan:
    """A plan from the words of a command: canary "10%", step "10%/1m", shadow "5%". Raises
    `InvalidArgument` (of which `BadGuard` is one) with the remedy."""
    share, slash, time = step.partition("/")
    if not slash:
        raise InvalidArgument(f"--step {step!r}: write a share and a time, as {STEP}")
    document = {
        "id": id,
        "version": version,
        "canary": _percent("--canary", canary),
        "step": _percent("--step", share),
        "every_s": _duration("--step", time),
        "guard": guard,
        "samples": samples,
        "shadow": _percent("--shadow", shadow) if shadow else 0.0,
        "agree": agree,
    }
    return parse_plan(document)


def parse_plan(document: Any) -> RolloutPlan:
    """The plan in a parsed JSON document; unknown fields are ignored. Raises `InvalidArgument`."""
    if not isinstance(document, Mapping):
        raise InvalidArgument("a rollout's plan must be an object")
    id, version = document.get("id"), document.get("version")
    for name, value in (("id", id), ("version", version)):
        if not isinstance(value, str) or TOKEN.fullmatch(value) is None:
            raise InvalidArgument(f"a rollout's {name} must be letters, digits, '_' or '-'")
    canary = _number(document, "canary", 0.0)
    step = _number(document, "step", 0.0)
    every = _number(document, "every_s", 0.0)
    shadow = _number(document, "shadow", 0.0)
    samples = document.get("samples", SAMPLES)
    if not 0 < canary <= 100:
        raise InvalidArgument(f"a canary of {canary:g} %: give it a share above 0, up to 100 %")
    if not 0 < step <= 100:
        raise InvalidArgument(f"a step of {step:g} % never ends: give a share above 0, as {STEP}")
    if not LEAST_EVERY <= every <= MOST_EVERY:
        raise InvalidArgument(
            f"a step each {every:g} s: give {LEAST_EVERY} s to 30 days, as {STEP}"
        )
    if (100 - canary) / step > 1000:
        raise InvalidArgument(f"steps of {step:g} %: at most 1000 of them are made")
    if not 0 <= shadow <= 100:
        raise InvalidArgument(f"a shadow of {shadow:g} %: give a share of 0 to 100 %")
    if type(samples) is not int or not 1 <= samples <= MOST_SAMPLES:
        raise InvalidArgument(f"samples {samples!r}: give a number from 1 to {MOST_SAMPLES}")
    text = document.get("guard", "")
    if not isinstance(text, str):
        raise InvalidArgument("the guards of a rollout must be a text")
    guards = parse_guards(text)
    if not shadow and any(guard.measure == "agree" for guard in guards):
        raise InvalidArgument("the guard `agree` compares copies of requests: add --shadow 5%")
    agreement = parse_agreement(document.get("agree", ""))
    return RolloutPlan(
        str(id),
        str(version),
        canary=canary,
        step=step,
        every=every,
        guards=guards,
        samples=samples,
        shadow=shadow,
        agreement=agreement,
    )


def _number(document: Mapping[str, Any], name: str, default: float) -> float:
    value = document.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise InvalidArgument(f"{name} of a rollout must be a number, not {value!r}")
    return float(value)


def _percent(flag: str, text: str) -> float:
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument(f"{flag} {text!r}: write a share, as 10%")
    return float(match[1])


def _duration(flag: str, text: str) -> float:
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument(f"{flag} …/{text!r}: write a time with its unit, as 30s or 1m")
    return float(match[1]) * _SECONDS[match[2]]
