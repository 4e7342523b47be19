"""Desired state of one model: which versions serve with what share, by which policy.

    {"model": "digits", "serve": [{"version": "1", "share": 90}, {"version": "2", "share": 10}],
     "sticky": "agent", "policy": "pull", "policy_options": {}, "memory_bytes": 0, "device": "cpu"}

Only `model` and `serve` are required; unknown fields are ignored. A document with any problem is
refused as a whole, with all its problems named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
STICKY = ("agent", "session", "none")
MAX_VERSIONS = 64
MOST_BYTES = 64 << 10  # of a document


@dataclass(frozen=True, slots=True)
class Share:
    """A version's share of the traffic, in percent."""

    version: str
    share: float


@dataclass(frozen=True, slots=True)
class DesiredState:
    """A document that passed `parse_desired`.

    sticky: what keeps a requester on one version: its agent, its session, or "none" (each request
    by itself). memory_bytes: free memory that a request needs on a node. device: preferred; others
    serve where none has it; "" for no preference.
    """

    model: str
    serve: tuple[Share, ...]
    sticky: str = "agent"
    policy: str = DEFAULT_POLICY
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    memory_bytes: int = 0
    device: str = ""

    def version_for(self, request: RequestInfo) -> str:
        """The version that serves this request: its pin, or its place in the split.

        Versions take consecutive ranges of the hash, in the document's order: moving 10 % of the
        traffic between two neighbours moves those 10 % of the agents and nobody else.
        """
        if request.version:
            return request.version
        if len(self.serve) == 1:
            return self.serve[0].version
        key = request.id
        if self.sticky == "agent":
            key = request.agent or request.id
        elif self.sticky == "session":
            key = request.session or request.agent or request.id
        point = 100.0 * fraction(f"{self.model}/{key}")
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
    )


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
