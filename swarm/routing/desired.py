"""Desired state of one model: which versions serve with what share, by which policy.

    {"model": "digits", "serve": [{"version": "1", "share": 90}, {"version": "2", "share": 10}],
     "sticky": "agent", "policy": "pull", "policy_options": {}, "memory_bytes": 0, "device": "cpu",
     "pins": {"camera-7": "1"}, "asked": {"cascade": ["1"]}, "rollout": {…},
     "slo": {"p99_ms": 20, "errors": 0.001}, "samples": false, "priority": 0}

Only `model` and `serve` are required; unknown fields are ignored. A document with any problem is
refused as a whole, with all its problems named. `rollout`: a version on trial, of which a feature
knows the plan (`swarm.feature.MeshFeature.trial`). `slo`: see `swarm.flow.objective`. `asked`: the
versions that other models ask; the registry keeps it (`swarm.models.asked_versions`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol, TypeVar

from swarm.errors import InvalidArgument
from swarm.features import features
from swarm.flow.objective import Objective, parse_objective
from swarm.routing.candidate import RequestInfo
from swarm.routing.errors import (
    BadDesiredState,
    BadPolicyOption,
    PolicyLoadFailed,
    Problem,
    UnknownPolicy,
)
from swarm.routing.registry import policy
from swarm.routing.rendezvous import fraction
from swarm.subjects import TOKEN

DEFAULT_POLICY = "pull"
CHOOSING_POLICY = "weighted-least-pending"
STICKY = ("agent", "session", "none")
MAX_VERSIONS = 64
MOST_BYTES = 256 << 10  # of a document
MAX_PINS = 256
MAX_ASKERS = 64  # models that ask one
MOST_PRIORITY = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Share:
    """A version's share of the traffic, in percent."""

    version: str
    share: float


class Trial(Protocol):
    """A version that gets a share of the traffic by a plan of its own, which it names by an id.
    lasts: seconds, after which it has all traffic unless the trial was ended."""

    @property
    def id(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def lasts(self) -> float: ...


@dataclass(frozen=True, slots=True)
class DesiredState:
    """A document that passed `parse_desired`.

    sticky: what keeps a requester on one version: its agent, its session, or "none" (each request
    by itself). memory_bytes: free memory that a request needs on a node. device: preferred; others
    serve where none has it; "" for no preference. pins: the version of each agent that keeps to
    one. asked: the versions that other models ask, by their names. rollout: a version that gets a
    share of the traffic by a plan of its own, or None. slo: the objective that who answers requests
    measures, or None. samples: whether an operator may take inputs from the traffic, to calibrate
    with. priority: where devices have no room for all models, those of lower priority give way.
    """

    model: str
    serve: tuple[Share, ...]
    sticky: str = "agent"
    policy: str = DEFAULT_POLICY
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    memory_bytes: int = 0
    device: str = ""
    pins: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rollout: Trial | None = None
    slo: Objective | None = None
    samples: bool = False
    priority: int = 0

    @property
    def kept(self) -> tuple[str, ...]:
        """The versions that serve whatever the shares are: agents are pinned to them, or other
        models ask them."""
        return (*self.pins.values(), *chain.from_iterable(self.asked.values()))

    @property
    def versions(self) -> tuple[str, ...]:
        """All versions that requests may go to, each once; a rollout's is the last."""
        names = [entry.version for entry in self.serve]
        names += self.kept
        if self.rollout is not None:
            names.append(self.rollout.version)
        return tuple(dict.fromkeys(names))

    @property
    def chooses(self) -> tuple[str, Mapping[str, Any]]:
        """The policy that chooses the lanes, and its options. Whoever has room takes from a shared
        lane: where a request asks for memory or a device, `pull` gives way to a policy that chooses
        nodes."""
        if self.policy == DEFAULT_POLICY and (self.memory_bytes or self.device):
            return CHOOSING_POLICY, {}
        return self.policy, self.policy_options

    @property
    def is_the_same_for_all(self) -> bool:
        """Whether one version serves whoever asks."""
        return len(self.serve) == 1 and not self.pins and self.rollout is None

    def version_for(self, request: RequestInfo, share: float = 0.0) -> str:
        """The version that serves this request: its pin, or its place in the split.

        share: percent of the traffic for the version under rollout. Versions take consecutive
        ranges of the hash, in the document's order: moving 10 % of the traffic between two
        neighbours moves those 10 % of the agents and nobody else. A growing share of a rollout
        takes no request back.
        """
        if request.version:
            return request.version
        if request.agent in self.pins:
            return self.pins[request.agent]
        key = self._sticks_to(request)
        plan = self.rollout
        # Hashed with the plan: not the same agents are first in each rollout.
        if plan is not None and 100.0 * fraction(f"{self.model}/{plan.id}/{key}") < share:
            return plan.version
        if len(self.serve) == 1:
            return self.serve[0].version
        return self._split(100.0 * fraction(f"{self.model}/{key}"))

    def _sticks_to(self, request: RequestInfo) -> str:
        """What keeps the request's version."""
        if self.sticky == "agent":
            return request.agent or request.session or request.id
        if self.sticky == "session":
            return request.session or request.agent or request.id
        return request.id

    def _split(self, point: float) -> str:
        for entry in self.serve:
            point -= entry.share
            if point < 0:
                return entry.version
        return max(self.serve, key=lambda entry: entry.share).version  # rounding of the last share


def read_desired(model: str, data: bytes) -> dict[str, Any]:
    """The document of a model's desired state, as its key holds it, checked.

    Raises `BadDesiredState`.
    """
    if len(data) > MOST_BYTES:
        raise BadDesiredState([Problem("", f"it has {len(data)} bytes, of {MOST_BYTES} at most")])
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise BadDesiredState([Problem("", "it is no JSON")]) from None
    if not isinstance(document, dict):
        raise BadDesiredState([Problem("", "it is no object")])
    parse_desired(document | {"model": model})
    return document


def parse_desired(document: Any) -> DesiredState:
    """The desired state that a parsed JSON document states. Raises BadDesiredState."""
    if not isinstance(document, Mapping):
        raise BadDesiredState([Problem("", "must be an object")])
    problems: list[Problem] = []

    def check(path: str, fine: bool, reason: str) -> bool:
        if not fine:
            problems.append(Problem(path, reason))
        return fine

    model = document.get("model")
    check("model", _is_token(model), "must be letters, digits, '_' or '-', 1 to 128 of them")
    serve = _shares(document.get("serve"), problems)
    sticky = document.get("sticky", "agent")
    check("sticky", sticky in STICKY, f"must be one of {', '.join(STICKY)}")
    memory = document.get("memory_bytes", 0)
    whole = isinstance(memory, int) and not isinstance(memory, bool)
    check("memory_bytes", whole and memory >= 0, "must be a whole number of bytes, 0 or more")
    device = document.get("device", "")
    check("device", isinstance(device, str), "must be a string")
    name = document.get("policy", DEFAULT_POLICY)
    options = document.get("policy_options", {})
    named = check("policy", isinstance(name, str), "must be a string")
    keyed = isinstance(options, Mapping) and all(isinstance(key, str) for key in options)
    if check("policy_options", keyed and "rng" not in options, "must be an object") and named:
        try:
            policy(name, **options)
        except (UnknownPolicy, PolicyLoadFailed) as error:
            problems.append(Problem("policy", str(error)))
        except BadPolicyOption as error:
            problems.append(Problem("policy_options", str(error)))
    pins = document.get("pins", {})
    fine = isinstance(pins, Mapping) and len(pins) <= MAX_PINS
    fine = fine and all(isinstance(a, str) and a and _is_token(v) for a, v in pins.items())
    check("pins", fine, f"must name a version for each agent, {MAX_PINS} at most")
    asked = document.get("asked", {})
    fine = isinstance(asked, Mapping) and len(asked) <= MAX_ASKERS
    fine = fine and all(
        _is_token(asker)
        and isinstance(versions, list)
        and len(versions) <= MAX_VERSIONS
        and all(map(_is_token, versions))
        for asker, versions in asked.items()
    )
    check("asked", fine, f"must list versions for each model that asks, {MAX_ASKERS} at most")
    rollout = _part(document, "rollout", _trial, problems)
    if rollout is not None and any(entry.version == rollout.version for entry in serve):
        problems.append(Problem("rollout.version", f"version {rollout.version} serves already"))
    slo = _part(document, "slo", parse_objective, problems)
    samples = document.get("samples", False)
    check("samples", isinstance(samples, bool), "must be true or false")
    priority = document.get("priority", 0)
    whole = isinstance(priority, int) and not isinstance(priority, bool)
    fine = whole and abs(priority) <= MOST_PRIORITY
    check("priority", fine, f"must be a whole number from -{MOST_PRIORITY} to {MOST_PRIORITY}")
    if problems:
        raise BadDesiredState(problems)
    return DesiredState(
        model=str(model),
        serve=serve,
        sticky=sticky,
        policy=name,
        policy_options=dict(options),
        memory_bytes=memory,
        device=device,
        pins=dict(pins),
        asked={asker: tuple(versions) for asker, versions in asked.items()},
        rollout=rollout,
        slo=slo,
        samples=samples,
        priority=priority,
    )


def _trial(document: Any) -> Trial | None:
    """The version on trial; None where no feature knows of trials."""
    for feature in features():
        if feature.trial is not None:
            return feature.trial(document)
    return None


def _part(
    document: Mapping[str, Any], name: str, parse: Callable[[Any], T], problems: list[Problem]
) -> T | None:
    """The part of that name, where there is one."""
    if name not in document:
        return None
    try:
        return parse(document[name])
    except InvalidArgument as error:
        problems.append(Problem(name, str(error)))
        return None


def _is_token(value: Any) -> bool:
    return isinstance(value, str) and TOKEN.fullmatch(value) is not None


def _shares(serve: Any, problems: list[Problem]) -> tuple[Share, ...]:
    if not isinstance(serve, list | tuple) or not 1 <= len(serve) <= MAX_VERSIONS:
        problems.append(Problem("serve", f"must be a list of 1 to {MAX_VERSIONS} versions"))
        return ()
    shares: list[Share] = []
    before = len(problems)
    for index, entry in enumerate(serve):
        path = f"serve[{index}]"
        if not isinstance(entry, Mapping):
            problems.append(Problem(path, "must be an object"))
            continue
        version, share = entry.get("version"), entry.get("share")
        if not _is_token(version):
            problems.append(Problem(f"{path}.version", "must be letters, digits, '_' or '-'"))
        elif any(version == other.version for other in shares):
            problems.append(Problem(f"{path}.version", f"version {version} is listed twice"))
        if (
            not isinstance(share, int | float)
            or isinstance(share, bool)
            or not 0 <= share <= 100  # NaN compares false
        ):
            problems.append(Problem(f"{path}.share", "must be a number of percent, 0 to 100"))
            continue
        shares.append(Share(str(version), float(share)))
    total = sum(entry.share for entry in shares)
    if len(problems) == before and abs(total - 100) > 1e-6:
        problems.append(Problem("serve", f"shares must add up to 100, not {total:g}"))
    return tuple(shares)
