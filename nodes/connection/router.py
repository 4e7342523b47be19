"""Chooses the lane of a request: the routing table, fed from gossip and desired state."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from nodes.connection.events import REASON_LIMIT, Tell
from swarm.fleet.advertised import candidates
from swarm.gossip import PeerView
from swarm.model import ModelInfo
from swarm.requests.request import Ask
from swarm.routing import ANY, DEFAULT_POLICY, RequestInfo, RoutingTable
from swarm.routing.errors import BadDesiredState
from swarm.routing.table import Route
from swarm.wire.messages import Features

log = logging.getLogger("swarm.routing")

OBSERVE_EVERY = 0.1  # seconds: gossip is no fresher


class Sized(Protocol):
    """A tensor, wherever its bytes are."""

    @property
    def nbytes(self) -> int: ...


NO_TENSORS: Mapping[str, Sized] = {}


@dataclass(slots=True)
class Picked:
    """A lane, and the route and time that its policy is told of when the request has ended."""

    lane: str
    route: Route | None = None
    at: float = 0.0


class Router:
    """One node's routing, for requests that it sends and for the stages that it feeds.

    view: the nodes of the mesh as gossip knows them. clock: seconds. on_event: each is called with
    the kind and the detail of an event (an adaptive policy that yields, a refused desired state).
    """

    def __init__(
        self,
        view: Callable[[], Mapping[str, PeerView]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_event: list[Tell] = []
        self._view = view
        self._clock = clock
        self._table = RoutingTable()
        self._observed = -math.inf
        self._picked: dict[str, Picked] = {}  # by request id
        self._forwarded: list[tuple[float, int, Route]] = []  # a heap, by the probable end
        self._numbers = itertools.count()
        self.routed: set[str] = set()  # models whose policy uses nodes' own lanes

    @property
    def under_way(self) -> int:
        """Requests of this requester whose end a policy has yet to hear of."""
        return len(self._picked)

    def _tell(self, kind: str, detail: dict[str, Any]) -> None:
        for tell in self.on_event:
            tell(kind, detail)

    def apply(self, model: str, document: dict[str, Any], own_lanes: bool = True) -> None:
        """Take a model's desired state. A bad one is refused whole, and the one before it stays.
        own_lanes: whether this user may send to, and serve, lanes of single nodes."""
        try:
            state = self._table.apply(document | {"model": model})
        except BadDesiredState as error:
            log.warning("desired state of %s refused: %s", model, error)
            self._tell("rejected", {"model": model, "detail": str(error)[:REASON_LIMIT]})
            return
        policy, _ = state.chooses
        if policy != DEFAULT_POLICY and not own_lanes:
            text = (
                f"policy {policy!r} sends to lanes of single nodes, which the rights of this "
                "node's user do not name: the shared lane is used, as by policy 'pull'"
            )
            log.warning("%s: %s", model, text)
            self._tell("rejected", {"model": model, "detail": text})
            self.routed.discard(model)
        elif policy == DEFAULT_POLICY:
            self.routed.discard(model)
        else:
            self.routed.add(model)

    def uses_own_lanes(self, model: str) -> bool:
        """Whether each node of this model must serve a lane of its own."""
        return model in self.routed

    def pick_lane(self, ask: Ask, remaining: float) -> str:
        """For a requester: the lane of the stage at which its request enters."""
        picked = self.pick(
            ask.info,
            ask.stage,
            request_id=ask.id,
            agent=ask.agent,
            session=ask.session,
            remaining=remaining,
            tensors=ask.tensors,
        )
        if picked.route is not None:
            self.ended(ask, False)  # an earlier attempt's
            self._picked[ask.id] = picked
        return picked.lane

    def ended(self, ask: Ask, ok: bool) -> None:
        """For a requester: its request ended."""
        picked = self._picked.pop(ask.id, None)
        if picked is not None:
            self.done(picked, ok)

    def next_lane(self, info: ModelInfo, stage: int, features: Features) -> str:
        """For a stage: the lane of the next stage. A stage does not see the end of the request,
        which counts as under way for as long as the next stage probably takes, and teaches no
        latency."""
        if info.model not in self.routed:
            return ANY
        picked = self.pick(
            info,
            stage,
            request_id=features.id,
            agent=features.agent,
            session=features.session,
            remaining=features.budget_us / 1e6,
            tensors=features.tensors,
        )
        if picked.route is not None:
            stay = self._table.stay_s(picked.route) or OBSERVE_EVERY
            until = picked.at + min(stay, picked.route.request.remaining_s)
            heapq.heappush(self._forwarded, (until, next(self._numbers), picked.route))
        return picked.lane

    def _let_go(self, now: float) -> None:
        """Count off forwarded requests that the next stage has probably finished."""
        while self._forwarded and self._forwarded[0][0] <= now:
            self._table.unseen(heapq.heappop(self._forwarded)[2])

    def pick(
        self,
        info: ModelInfo,
        stage: int,
        *,
        request_id: str,
        agent: str = "",
        session: str = "",
        remaining: float = 1.0,
        tensors: Mapping[str, Sized] = NO_TENSORS,
    ) -> Picked:
        """The lane for a request; the shared lane where the policy names no other one."""
        if info.model not in self.routed:
            return Picked(ANY)
        now = self._clock()
        self._let_go(now)
        if now - self._observed > OBSERVE_EVERY:
            self._observed = now
            self._table.observe(candidates(self._view(), now))
            for model, at_stage, event in self._table.take_events():
                self._tell("routing", {"model": model, "stage": at_stage, "detail": str(event)})
        size = sum([tensor.nbytes for tensor in tensors.values()])
        request = RequestInfo(
            request_id, info.model, info.version, stage, agent, session, size, remaining
        )
        route = self._table.route(request, now)
        if not isinstance(route, Route):
            return Picked(ANY)
        self._table.sent(route, now)
        return Picked(route.lane, route, now)

    def done(self, picked: Picked, ok: bool) -> None:
        """The request ended; call once for each `pick`."""
        if picked.route is not None:
            now = self._clock()
            self._table.done(picked.route, now, now - picked.at, ok)
