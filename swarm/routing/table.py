"""The routing table: which nodes may serve a request, which version does, and on which lane.

Filters first, then the policy. A filter depends only on gossip and desired state: it is computed
when one of them changes, never for each request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from swarm.routing.base import Policy
from swarm.routing.candidate import Candidate, RequestInfo
from swarm.routing.desired import DEFAULT_POLICY, DesiredState, parse_desired
from swarm.routing.registry import policy

_MOST_FILTERED = 1024  # answers of filters kept: requests name versions, real ones or not


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes. `request` carries the version that was decided.

    spilled: whether the split's version had no node and another one serves.
    """

    lane: str
    request: RequestInfo
    policy: Policy
    spilled: bool = False

    @property
    def version(self) -> str:
        """The version to run."""
        return self.request.version


@dataclass(frozen=True, slots=True)
class NoRoute:
    """No node can serve a request at present.

    out: the number of candidates ruled out, by reason: draining, suspected, unwarmed, memory,
    version.
    """

    reason: str
    out: Mapping[str, int] = field(default_factory=dict)


class RoutingTable:
    """Desired state and gossip of all models, and one policy per model and stage.

    default_policy: for models without desired state. rng: seeds the policies' dice.
    """

    def __init__(self, *, default_policy: str = DEFAULT_POLICY, rng: Random | None = None) -> None:
        self._default = default_policy
        self._rng = rng if rng is not None else Random()
        self._desired: dict[str, DesiredState] = {}
        self._candidates: tuple[Candidate, ...] = ()
        self._eligible: dict[tuple[str, str, int], tuple[list[Candidate], Counter[str]]] = {}
        self._policies: dict[tuple[str, int], Policy] = {}

    def apply(self, document: Any) -> DesiredState:
        """Take a model's desired state (a parsed JSON document) in force, as a whole.

        Raises BadDesiredState, and then what was in force stays. A policy whose name and options
        did not change keeps what it learned.
        """
        state = parse_desired(document)
        old = self._desired.get(state.model)
        self._desired[state.model] = state
        if old is None or old.chooses != state.chooses:
            self._drop_policies(state.model)
        self._eligible.clear()
        return state

    def desired(self, model: str) -> DesiredState | None:
        """The desired state in force for a model, if any."""
        return self._desired.get(model)

    def observe(self, candidates: Iterable[Candidate]) -> None:
        """Replace the news of gossip: every node of the mesh, once for each stage it serves."""
        self._candidates = tuple(candidates)
        self._eligible.clear()
        nodes = {candidate.node for candidate in self._candidates}
        for chosen in self._policies.values():
            chosen.retain(nodes)

    def route(self, request: RequestInfo, now: float) -> Route | NoRoute:
        """Decide version and lane for a request at `now` (seconds). Call `sent` once published."""
        state = self._desired.get(request.model)
        if state is not None:
            version = state.version_for(request)
        else:
            version = request.version or self._only_version(request.model, request.stage)
            if not version:
                return NoRoute("no desired state, and not exactly one version is served")
        found, out = self._filtered(request.model, version, request.stage)
        spilled = False
        if not found and state is not None and not request.version:
            for entry in sorted(state.serve, key=lambda entry: -entry.share):
                others, _ = self._filtered(request.model, entry.version, request.stage)
                if others and entry.share > 0:
                    found, version, spilled = others, entry.version, True
                    break
        if request.version != version:
            request = replace(request, version=version)
        chosen = self._policy(request.model, request.stage)
        lane = chosen.choose(found, request, now)
        if lane is not None:
            return Route(lane, request, chosen, spilled)
        if found:
            return NoRoute("every node is at its limit")
        return NoRoute(f"no node serves version {version} at stage {request.stage}", out)

    def sent(self, route: Route, now: float) -> None:
        """The request was published on the route's lane at `now` (seconds)."""
        route.policy.sent(route.lane, route.request, now)

    def done(self, route: Route, now: float, latency_s: float, ok: bool) -> None:
        """The request ended at `now`, `latency_s` seconds after it was sent. Call it once for each
        `sent`."""
        route.policy.done(route.lane, route.request, now, latency_s, ok)

    def stay_s(self, route: Route) -> float:
        """Seconds that a request just sent on the route probably stays at its node; 0.0 for not yet
        known."""
        return route.policy.estimates.stay_s(route.lane)

    def unseen(self, route: Route) -> None:
        """In place of `done`, for a request whose end its sender does not see: it has probably left
        its node."""
        route.policy.unseen(route.lane, route.request)

    def take_events(self) -> list[tuple[str, int, object]]:
        """(model, stage, event) of all policies since the last call, e.g. an adaptive's yield."""
        return [
            (model, stage, event)
            for (model, stage), chosen in self._policies.items()
            for event in chosen.take_events()
        ]

    def _policy(self, model: str, stage: int) -> Policy:
        chosen = self._policies.get((model, stage))
        if chosen is None:
            state = self._desired.get(model)
            rng = Random(self._rng.getrandbits(64))
            if state is None:
                chosen = policy(self._default, rng=rng)
            else:
                name, options = state.chooses
                chosen = policy(name, rng=rng, **options)
            self._policies[model, stage] = chosen
        return chosen

    def _drop_policies(self, model: str) -> None:
        for key in [key for key in self._policies if key[0] == model]:
            del self._policies[key]

    def _only_version(self, model: str, stage: int) -> str:
        served = {
            version
            for candidate in self._candidates
            if candidate.stage == stage
            for version in candidate.versions.get(model, ())
        }
        return served.pop() if len(served) == 1 else ""

    def _filtered(
        self, model: str, version: str, stage: int
    ) -> tuple[list[Candidate], Counter[str]]:
        key = (model, version, stage)
        cached = self._eligible.get(key)
        if cached is None:
            state = self._desired.get(model)
            memory, device = (state.memory_bytes, state.device) if state else (0, "")
            out: Counter[str] = Counter()
            fit = []
            for candidate in self._candidates:
                if candidate.stage != stage or model not in candidate.versions:
                    continue
                why = _ruled_out(candidate, model, version, memory)
                if why:
                    out[why] += 1
                else:
                    fit.append(candidate)
            preferred = [candidate for candidate in fit if device and candidate.device == device]
            if len(self._eligible) > _MOST_FILTERED:
                self._eligible.clear()
            cached = self._eligible[key] = (preferred or fit, out)
        return cached


def _ruled_out(candidate: Candidate, model: str, version: str, memory_bytes: int) -> str:
    """The reason for which a node may not serve, or "" where it may."""
    if version not in candidate.versions[model]:
        return "version"
    if candidate.draining:
        return "draining"
    if candidate.suspected:
        return "suspected"
    if not candidate.warmed:
        return "unwarmed"
    free = candidate.memory_free_bytes
    if free is not None and free < memory_bytes:
        return "memory"
    return ""
