"""The requester: lets requests in, sends each on its way, and learns from their ends."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from random import Random

from swarm.errors import (
    DeadlineExceeded,
    NotConnected,
    PermissionDenied,
    Status,
    SwarmError,
    Unavailable,
)
from swarm.link import Link
from swarm.model import ModelInfo
from swarm.requests.admission import Admitted, ModelAdmission
from swarm.requests.attempts import (
    DEFAULTS,
    AttemptConfig,
    Attempts,
    is_own_fault,
    is_silence,
    is_unusual,
)
from swarm.requests.model_way import ModelWay
from swarm.requests.request import FAST, Ask, Picker
from swarm.requests.sessions import SeenWeights
from swarm.requests.under_way import RequesterState, UnderWay
from swarm.transport.routes import Routes
from swarm.wire.messages import Result

NO_TURN = "the budget ended before the request's turn: others went before it"
MOST_VERSIONS = 16  # model versions whose ways are kept, by entry; the longest unused one goes


class Requester:
    """Owned by a mesh or a node; safe for any number of concurrent requests.

    routes: whose clock it goes by. picker: the routing policy for the first stage that a request is
    sent to; without one, the shared lane. rng: draws the pauses between attempts. config: when a
    request is asked again.
    """

    def __init__(
        self,
        routes: Routes,
        picker: Picker | None = None,
        rng: Random | None = None,
        config: AttemptConfig = DEFAULTS,
    ) -> None:
        self._routes = self._bulk = routes
        self._shared = RequesterState(routes, picker, rng or Random(), config)
        self.seen = SeenWeights(clock=routes.clock)
        self._ways: OrderedDict[tuple[str, str, int], ModelWay] = (
            OrderedDict()
        )  # by where they enter
        self._on_up: dict[Link, Callable[[], None]] = {}
        self._follow(routes.link)

    def use_second(self, bulk: Routes) -> None:
        """Models with large messages have a connection of their own. Call before the first
        request."""
        self._bulk = bulk
        self._follow(bulk.link)

    def _follow(self, link: Link) -> None:
        self._on_up[link] = partial(self._reconnected, link)
        link.on_up.append(self._on_up[link])
        link.on_denied.append(self._denied)

    @property
    def under_way(self) -> int:
        """Requests that wait for their answers."""
        return len(self._shared.requests)

    @property
    def sent(self) -> int:
        """Attempts since the start."""
        return self._shared.sent

    @property
    def retries(self) -> int:
        """Attempts beyond each request's first one, since the start, but hedges."""
        return self._shared.retries

    @property
    def hedges(self) -> int:
        """Second copies since the start."""
        return self._shared.hedges

    def admission(self, info: ModelInfo) -> ModelAdmission:
        """The admission of a model version at its first stage, with its latencies."""
        return self._way(info, 1).admission

    def breakers(self) -> dict[str, str]:
        """The states of circuit breakers that have seen failures, by `model@version/stage`."""
        return {
            f"{model}@{version}/{stage}": str(state)
            for (model, version, _entry), way in self._ways.items()
            for stage, state in way.admission.breakers.items()
        }

    async def infer(self, ask: Ask) -> Result:
        """The result, failed or not. Never raises a `SwarmError`: a failure is a result."""
        started = self._routes.clock()  # uvloop's own clock has steps of a millisecond
        way = self._way(ask.info, ask.stage)
        remaining = ask.deadline - asyncio.get_running_loop().time()
        if remaining <= 0:  # this is no overload, so no `retry_after` is told
            return ask.failed(DeadlineExceeded("the budget was over before the request was sent"))
        try:
            admitted = way.admission.enter(remaining, started, ask.urgency)
        except SwarmError as error:
            if isinstance(error, Unavailable) and self._routes.look_out is not None:
                self._routes.look_out()  # a node that comes back closes the breaker
            flaw = self._routes.flaw(ask.info.model, ask.info.version)
            if flaw and isinstance(error, Unavailable):
                error = Unavailable(f"{error}: {flaw}")
            refused = ask.failed(error)
            refused.reached = not isinstance(error, Unavailable)
            # A caller that asks again at once must not keep the loop from reading answers of other
            # requests.
            await asyncio.sleep(0)
            return refused
        session = (ask.info.model, ask.info.version, ask.agent, ask.session)
        if ask.session and len(self.seen):
            ask.weights = max(ask.weights, self.seen.least(session))
        fast = ask.delivery == FAST
        silences = way.admission.fast if fast else way.admission.silences
        attempts = Attempts(fast, started)
        request = UnderWay(ask, way, attempts, admitted.is_probe, self._shared, silences)
        result: Result | None = None
        if ask.urgency or ask.share:
            way.open_gate()
        in_time = True
        try:
            if way.gate is not None and not admitted.is_probe:
                in_time = await way.turn(ask)
                attempts.begun = self._routes.clock()
            result = await request.run() if in_time else ask.failed(DeadlineExceeded(NO_TURN))
        finally:
            now = self._routes.clock()
            ok = result is not None and result.status is Status.OK
            way.admission.leave(
                admitted,
                result,
                now,
                unusual=attempts.wants_fast
                and is_unusual(attempts, ask.hedge is not None, result, now - started),
                judged=ok
                or (
                    in_time
                    and not (request.was_behind or is_silence(result) or is_own_fault(result))
                ),
                no_lane_at=attempts.at if request.no_lane and not ok else None,
            )
            way.ended(result)
        result.latency = now - started
        result.reached = ok or (in_time and not request.no_lane)
        if is_silence(result) and not request.no_lane:
            self._judge_once_heard(way, admitted, result, attempts.at)
        if result.status is Status.DEADLINE_EXCEEDED and self._routes.look_out is not None:
            self._routes.look_out()  # nodes say what is wrong with the lanes
        if ask.session and ok:
            self.seen.saw(session, result.weights)
        elif ask.session and request.was_behind:
            self.seen.lacked(session, ask.weights)
        if result.status is Status.RESOURCE_EXHAUSTED and not result.stage:
            # The first lane, if it was full, takes a message when the next request is answered.
            result.retry_after = result.retry_after or way.admission.answer_interval
        return result

    def _judge_once_heard(
        self, way: ModelWay, admitted: Admitted, result: Result, sent: float
    ) -> None:
        """No answer came. The stages are at fault if the server can be heard: a link that was cut
        without a word looks the same, and says nothing of them."""
        admission, now = way.admission, self._routes.clock()

        def told(pong: asyncio.Future[None]) -> None:
            if pong.cancelled() or pong.exception() is not None:
                admission.no_lane(sent)
            else:
                admission.judge(admitted, result, now)

        try:
            way.routes.link.sync().add_done_callback(told)
        except NotConnected:
            admission.no_lane(sent)

    def tend(self) -> None:
        """Call about every second: take in news that need not be read for each request."""
        self._shared.count_requests()
        for way in self._ways.values():
            way.tend()

    def _way(self, info: ModelInfo, stage: int) -> ModelWay:
        key = (info.model, info.version, stage)
        way = self._ways.get(key)
        if way is None:
            self._close_unused()
            routes, requests = self._bulk if info.is_large else self._routes, self._shared.requests
            way = self._ways[key] = ModelWay(routes, info, requests.__len__, stage)
        else:
            self._ways.move_to_end(key)
        return way

    def _close_unused(self) -> None:
        """Before one more: close the ways that were not used for longest. A way with requests under
        way stays: its parcels would be stored, and computed twice."""
        idle = [key for key, way in self._ways.items() if not way.admission.inside]
        for key in idle[: max(0, len(self._ways) + 1 - MOST_VERSIONS)]:
            self._ways.pop(key).sender.close()

    def _reconnected(self, link: Link) -> None:
        """The server may have lost what it kept in memory."""
        for request in self._shared.requests.values():
            if request.way.routes.link is link:
                request.lost_in_lane()

    def _denied(self, subject: str, error: PermissionDenied) -> None:
        """This user may not send there in fast mode. (Of a lane its publisher says so.)"""
        for request in self._shared.requests.values():
            info = request.ask.info
            if request.attempts.fast and subject == self._routes.subjects.fresh(
                info.model, info.version, request.ask.stage
            ):
                request.end_wait(error)

    def close(self) -> None:
        """Send nothing any more, and stop waiting for parcels that other processes have."""
        for request in self._shared.requests.values():
            request.drop()
        for link, reconnected in self._on_up.items():
            link.on_up.remove(reconnected)
            link.on_denied.remove(self._denied)
        self._on_up.clear()
        while self._ways:
            self._ways.popitem()[1].sender.close()
