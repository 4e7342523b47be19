"""A mesh that is asked through a connection of nats-py, which the caller has: what every client of
plain NATS can ask for."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from swarm.errors import (
    DeadlineExceeded,
    DecodeError,
    NotConnected,
    PermissionDenied,
    Status,
    SwarmError,
    Unavailable,
    error_for,
)
from swarm.ids import ulid
from swarm.link import LinkMessage
from swarm.link.grants import EVERYTHING
from swarm.requests.cancels import word
from swarm.requests.request import refused
from swarm.subjects import Subjects
from swarm.wire.messages import Request, Result
from swarm.wire.picture import Inputs, tensors_of

if TYPE_CHECKING:
    from nats.aio.client import Client as Connection
    from nats.aio.msg import Msg

NO_RESPONDERS = LinkMessage("", "", b"NATS/1.0 503\r\n\r\n", b"")


class _Carrier:
    """A connection of nats-py as features use one (`swarm.link.carrier.Carrier`)."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._inbox = connection.new_inbox()
        self._waiting: dict[str, Callable[[LinkMessage], None]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._subscription: Any = None
        self.grants = EVERYTHING  # nats-py does not ask the server what its user may do
        self.on_up: list[Callable[[], None]] = []
        self.on_denied: list[Callable[[str, PermissionDenied], None]] = []

    async def open(self) -> None:
        self._subscription = await self._connection.subscribe(f"{self._inbox}.*", cb=self._heard)

    async def close(self) -> None:
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        if self._connection.is_connected:
            await self._subscription.unsubscribe()

    async def _heard(self, message: Msg) -> None:
        callback = self._waiting.get(message.subject)
        if callback is not None:
            unserved = (message.headers or {}).get("Status") == "503"
            found = LinkMessage(message.subject, message.reply, None, message.data)
            callback(NO_RESPONDERS if unserved else found)

    def expect(self, callback: Callable[[LinkMessage], None]) -> str:
        reply = f"{self._inbox}.{secrets.token_hex(8)}"
        self._waiting[reply] = callback
        return reply

    def forget(self, reply: str) -> None:
        self._waiting.pop(reply, None)

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        if not self._connection.is_connected:
            raise NotConnected("the connection of nats-py is not connected")
        task = asyncio.create_task(self._connection.publish(subject, data, reply=reply))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)


class OverNats:
    """See `swarm.over`."""

    def __init__(self, connection: Connection, mesh: str, agent: str) -> None:
        self.subjects = Subjects(mesh)
        self.agent = agent
        self.link = _Carrier(connection)
        self._connection = connection

    async def __aenter__(self) -> Any:
        await self.link.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.link.close()

    async def infer(
        self,
        model: str,
        inputs: Inputs,
        budget: float = 5.0,
        session: str = "",
        *,
        weights: int = 0,
        traceparent: str = "",
        version: str = "",
    ) -> Result:
        """Run `model` on `inputs`: arguments, result and errors as of `swarm.Mesh.infer`. Of
        silence, or where no node serves the model, the error says so; nothing is asked twice."""
        name, _, pinned = model.partition("@")
        request = Request(
            dict(tensors_of(inputs)),
            ulid(),
            version=version or pinned,
            budget=budget,
            session=session,
            agent=self.agent,
            weights=weights,
            traceparent=traceparent,
            key=secrets.token_hex(16),
        )
        started = time.perf_counter()
        try:
            data = await self._answer(self.subjects.infer(name), b"".join(request.parts()), budget)
            result = Result.decode(data)
        except SwarmError as error:
            result = refused(request.id, name, error)
        except asyncio.CancelledError:
            self.link.publish(self.subjects.cancel_asked(name), word(request))
            raise
        result.latency = time.perf_counter() - started
        if result.status is not Status.OK:
            where = f" (stage {result.stage}, node {result.node})" if result.node else ""
            raise error_for(result.status, result.message + where, result.retry_after)
        return result

    async def status(self, budget: float = 5.0) -> dict[str, Any]:
        """The fleet as one node sees it (`swarm/schemas/fleet.schema.json`). Raises `Unavailable`,
        `DeadlineExceeded`, `DecodeError`."""
        try:
            found = json.loads(await self._answer(self.subjects.fleet, b"", budget))
        except ValueError as error:
            raise DecodeError(f"the fleet's picture is no JSON: {error}") from None
        return dict(found)

    async def _answer(self, subject: str, data: bytes, budget: float) -> bytes:
        """Raises `Unavailable`, `DeadlineExceeded`, `NotConnected`."""
        from nats import errors

        if budget <= 0:
            raise DeadlineExceeded(f"a budget of {budget} s leaves no time at all")
        try:
            return bytes((await self._connection.request(subject, data, timeout=budget)).data)
        except errors.NoRespondersError:
            raise Unavailable(f"nobody answers on {subject} at present") from None
        except (TimeoutError, errors.TimeoutError):
            raise DeadlineExceeded(f"no answer on {subject} inside the budget") from None
        except errors.Error as error:
            raise NotConnected(f"nats-py: {error or type(error).__name__}") from None
