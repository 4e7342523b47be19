"""The frame around each call: who asks, which status it ends with, and the figures."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from nodes.gateway.call import Caller, Callers
from nodes.gateway.door import Figures
from nodes.gateway.grpc.answers import error_text, retry_hint, status_code
from nodes.gateway.grpc.messages import Unreadable
from nodes.gateway.statuses import FAULT
from swarm.errors import Internal, InvalidArgument, SwarmError

log = logging.getLogger("swarm.gateway")

Behaviour = Callable[[Any, Any], Awaitable[Any]]  # (request or requests, context)


@dataclass(frozen=True, slots=True)
class Call:
    """headers: the metadata that is text. context: of the library. ask_again: who asks with each
    request of a stream; raises what `Callers.of` raises."""

    caller: Caller
    headers: dict[str, str]
    context: Any
    ask_again: Callable[[], Caller]

    @property
    def remaining(self) -> float | None:
        """Seconds to the client's deadline, None without one."""
        left: float | None = self.context.time_remaining()
        return left


Method = Callable[[Any, Call], Awaitable[Any]]  # a request, or the stream of them


def readable(request: Any) -> Any:
    """A message as it came. Raises `InvalidArgument` where its bytes could not be read."""
    if isinstance(request, Unreadable):
        raise InvalidArgument(f"these bytes are no message of this method: {request.reason}")
    return request


class Calls:
    """callers: tells who asks. figures: of all calls of known callers."""

    def __init__(self, callers: Callers, figures: Figures) -> None:
        self._callers = callers
        self._figures = figures

    def framed(self, method: Method, takes: bool = False) -> Behaviour:
        """A method of one request, or of a stream, each of which it reads by `readable`. takes:
        whether it counts against its caller's quota; requests of a stream do by
        `Call.ask_again`."""

        async def behaviour(request: Any, context: Any) -> Any:
            async def work() -> Any:
                return await method(readable(request), self._call(context, takes))

            return await self._ended(context, work)

        return behaviour

    def _call(self, context: Any, takes: bool) -> Call:
        """Raises what `Callers.of` raises."""
        metadata = context.invocation_metadata() or ()
        headers = {name: value for name, value in metadata if isinstance(value, str)}
        names = context.auth_context().get("x509_common_name") or [b""]
        certificate = names[0].decode("utf-8", "replace")
        asks = partial(self._callers.of, headers, address(context.peer()), certificate)
        return Call(asks(takes=takes), headers, context, asks)

    async def _ended(self, context: Any, work: Callable[[], Awaitable[Any]]) -> Any:
        """The answer; in place of an error, its status. A cancelled call counts as `CANCELLED`."""
        code = grpc.StatusCode.CANCELLED
        self._figures.in_flight += 1
        try:
            try:
                answer = await work()
                code = grpc.StatusCode.OK
                return answer
            except SwarmError as error:
                refusal = error
            except Exception:
                log.exception("a call failed")
                refusal = Internal(FAULT)
            code = status_code(refusal)
        finally:
            self._figures.in_flight -= 1
            self._figures.by_code[code.name] += 1
        return await context.abort(code, error_text(refusal), retry_hint(refusal))


def address(peer: str) -> str:
    """The address that a connection comes from, of gRPC's `ipv4:127.0.0.1:4711`,
    `ipv6:%5B::1%5D:4711`; "" for other kinds."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return ""
    host = rest.rpartition(":")[0]
    return host.replace("%5B", "").replace("%5D", "").strip("[]")
