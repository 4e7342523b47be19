"""The objectives of the models that this node answers for: measured here, told to dashboards.

Only requests that this node answers are seen: those of `infer.<model>`, and an edge's captures.
Requests of clients that ask the lanes themselves are not among them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, Protocol

from nodes.connection.events import Tell
from swarm.errors import Status
from swarm.flow.objective import Burn, Objective
from swarm.periodic import BEAT, beat
from swarm.routing import BadDesiredState, parse_desired
from swarm.wire.messages import Request, Result

JUDGE_EVERY = 10 * BEAT  # seconds
MOST_MODELS = 64  # of a gateway that are measured
# What is no fault of the mesh: an answer, and errors of the requester.
NO_FAULT = {
    Status.OK,
    Status.INVALID_ARGUMENT,
    Status.NOT_FOUND,
    Status.UNAUTHENTICATED,
    Status.PERMISSION_DENIED,
}


class KnownObjectives(Protocol):
    """The objectives of desired state, as this process knows it."""

    def objective(self, model: str) -> Objective | None:
        """None where there is none."""

    def knows(self, model: str) -> bool:
        """Whether this process knows the model's desired state at present."""


class DesiredObjectives:
    """Those of the model that this node serves, and of the models that it was asked for."""

    def __init__(self, catalog: KnownObjectives) -> None:
        self._catalog = catalog
        self._own: dict[str, Objective | None] = {}

    def read(self, model: str, document: dict[str, Any]) -> None:
        """Desired state of this node's model was read."""
        with contextlib.suppress(BadDesiredState):  # the router has told of it
            self._own = {model: parse_desired(document | {"model": model}).slo}

    def objective(self, model: str) -> Objective | None:
        """See `KnownObjectives`."""
        return self._own[model] if model in self._own else self._catalog.objective(model)

    def knows(self, model: str) -> bool:
        """See `KnownObjectives`."""
        return model in self._own or self._catalog.knows(model)


class Objectives:
    """`answered` counts, `run()` judges until cancelled, `status()` tells.

    tell(kind, detail): publishes an event: `slo`, when a model's objective begins to burn, or ends.
    gossip(model, what): tells the other nodes what burns, "" once nothing does.
    """

    def __init__(
        self,
        known: KnownObjectives,
        tell: Tell,
        gossip: Callable[[str, str], None] = lambda model, what: None,
    ) -> None:
        self._known = known
        self._tell = tell
        self._gossip = gossip
        self._burns: dict[str, Burn] = {}
        self._judged: dict[str, dict[str, Any]] = {}

    def answered(self, model: str, request: Request, result: Result) -> None:
        """A request was answered; without an objective this is one look-up."""
        objective = self._known.objective(model)
        if objective is None:
            return
        burn = self._burns.get(model)
        if burn is None or burn.objective != objective:
            if burn is None and len(self._burns) >= MOST_MODELS:
                return
            burn = self._burns[model] = Burn(objective)
        burn.count(result.status in NO_FAULT, result.latency * 1e3)

    async def run(self) -> None:
        """Judge every two seconds, until cancelled."""
        while True:
            await beat(JUDGE_EVERY)
            self.judge(time.monotonic())

    def judge(self, now: float) -> None:
        """Judge each model, and tell of those that begin or cease to burn. now: seconds."""
        for model, burn in list(self._burns.items()):
            burn.keep(now)
            before = self._judged.get(model, {}).get("burning", "")
            if self._is_over(model, burn, now):
                del self._burns[model]
                self._judged.pop(model, None)
                if before:
                    ends = {"model": model, "burning": "", "detail": f"{before}: no objective"}
                    self._tell("slo", ends)
                    self._gossip(model, "")
                continue
            judged = self._judged[model] = {"model": model} | burn.judge(now)
            burning = judged["burning"]
            if burning == before:
                continue
            fastest = max(judged["burn"].values())
            detail = (
                f"{burning}: spends its error budget {fastest:g} times as fast as {burn.objective} "
                "allows"
                if burning
                else f"{before}: as allowed again"
            )
            self._tell("slo", {"model": model, "burning": burning, "detail": detail})
            self._gossip(model, burning)

    def _is_over(self, model: str, burn: Burn, now: float) -> bool:
        """Whether this model need not be measured any more. A gateway reads a model's desired state
        when somebody asks for the model: for a model that nobody asks for, it does not hear of a
        removal."""
        if self._known.knows(model):
            return self._known.objective(model) is None
        return burn.is_idle(now)

    def status(self) -> dict[str, Any]:
        """The field that a node's status documents have where a model has an objective."""
        return {"slo": list(self._judged.values())} if self._judged else {}
