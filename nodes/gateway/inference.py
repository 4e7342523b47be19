"""The one way from a client's request to the mesh: HTTP, gRPC and its streams all take it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nodes.gateway.call import InferCall
from nodes.gateway.hand import RETRY_AFTER, BytesInHand
from nodes.gateway.statistics import Statistics
from swarm.errors import ResourceExhausted, SwarmError
from swarm.requests.request import answered
from swarm.wire.messages import Request, Result
from swarm.wire.urgency import room_for, urgency_of

Answer = Callable[[str, Request], Awaitable[Result]]  # (model, request) -> result, never raises
OnRefused = Callable[[str, SwarmError, str], None]  # (agent, error, address of the client)


class Inference:
    """answer: a node's answerer. most_in_flight: requests of all clients at a time; more are
    refused at once, high ones beyond a quarter more. hand: the bytes of requests that all doors
    hold. on_refused: is told of each refusal."""

    def __init__(
        self,
        answer: Answer,
        most_in_flight: int,
        hand: BytesInHand,
        on_refused: OnRefused = lambda agent, error, peer: None,
    ) -> None:
        self._answer = answer
        self._most_in_flight = most_in_flight
        self._on_refused = on_refused
        self.hand = hand
        self.in_flight = 0
        self.refused = 0
        """Requests refused because too many were in flight."""
        self.statistics = Statistics()

    async def run(self, call: InferCall) -> Result:
        """The answer inside the call's budget; to cancel this coroutine cancels the request.

        Raises the error of the failure's status: `InvalidArgument`, `NotFound`,
        `ResourceExhausted` (with `retry_after` in seconds), `DeadlineExceeded`, `Unavailable`,
        `PermissionDenied`, `Internal`.
        """
        most = self._most_in_flight
        if self.in_flight >= most and self.in_flight >= room_for(
            most, urgency_of(call.request.priority)
        ):
            self.refused += 1
            text = f"{self.in_flight} requests are in flight at this gateway"
            error = ResourceExhausted(text, RETRY_AFTER)
            self._on_refused(call.request.agent, error, "")
            raise error
        self.in_flight += 1
        try:
            result = await self._answer(call.model, call.request)
        finally:
            self.in_flight -= 1
        self.statistics.add(call.model, result, call.request.version)
        return answered(result)
