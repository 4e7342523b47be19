"""A mesh that is asked through a connection of nats-py, which the caller has: what every client of
plain NATS can ask for."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from swarm.errors import (
    MessageTooLarge,
    NoResponders,
    NotConnected,
    PermissionDenied,
    Unavailable,
)
from swarm.fleet.service import ask_fleet
from swarm.ids import ulid
from swarm.link import LinkMessage
from swarm.link.grants import EVERYTHING
from swarm.requests.by_service import ByService
from swarm.requests.request import answered, check_budget
from swarm.requests.sessions import SeenWeights
from swarm.subjects import Subjects
from swarm.tasks import told
from swarm.wire.messages import Request, Result
from swarm.wire.picture import Inputs, tensors_of
from swarm.wire.tensors import Part
from swarm.wire.urgency import checked_priority

if TYPE_CHECKING:
    from nats.aio.client import Client as Connection
    from nats.aio.msg import Msg

SENT_WITHIN = 1.0  # seconds, for what was published last
LOOK_EVERY = 0.05  # seconds, while there is no connection
NO_RESPONDERS = LinkMessage("", "", b"NATS/1.0 503\r\n\r\n", b"")


class _Carrier:
    """A connection of nats-py as features use one (`swarm.link.types.Carrier`)."""

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
        """What was published last is still sent, such as that nobody waits for an answer."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=SENT_WITHIN)
        for task in self._sending:
            task.cancel()
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
        task.add_done_callback(told)

    async def ready(self) -> None:
        while not self._connection.is_connected:
            if self._connection.is_closed:
                raise NotConnected("the connection of nats-py is closed")
            await asyncio.sleep(LOOK_EVERY)  # nats-py tells its owner alone when it is back

    async def request(
        self, subject: str, data: Sequence[Part] | bytes, timeout: float
    ) -> LinkMessage:
        from nats import errors

        whole = data if isinstance(data, bytes) else b"".join(data)
        try:
            found = await self._connection.request(subject, whole, timeout=timeout)
        except errors.NoRespondersError:
            raise NoResponders(f"nobody answers on {subject} at present") from None
        except errors.MaxPayloadError:
            raise MessageTooLarge(
                f"a message of {len(whole)} bytes: the server takes {self._connection.max_payload}"
            ) from None
        except errors.TimeoutError:
            raise TimeoutError from None
        except errors.Error as error:
            raise NotConnected(f"nats-py: {error or type(error).__name__}") from None
        return LinkMessage(found.subject, found.reply, None, found.data)


class OverNats:
    """See `swarm.over`."""

    def __init__(self, connection: Connection, mesh: str, agent: str) -> None:
        self.subjects = Subjects(mesh)
        self.agent = agent
        self.link = _Carrier(connection)
        self._by_service = ByService(self.link, self.subjects, SeenWeights(), agent)

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
        priority: str = "",
        allow_degraded: bool | None = None,
    ) -> Result:
        """Run `model` on `inputs`: arguments, result and errors as of `swarm.Mesh.infer`. After
        silence it is asked once more, with the same id."""
        check_budget(budget)
        name = f"{model.partition('@')[0]}@{version}" if version else model
        request = Request(
            dict(tensors_of(inputs)),
            ulid(),
            session=session,
            weights=weights,
            traceparent=traceparent,
            priority=checked_priority(priority),
            allow_degraded=allow_degraded,
        )
        return answered(await self._by_service.ask(name, request, budget))

    async def status(self) -> dict[str, dict[str, Any]]:
        """What one node's gossip knows of every node, by id (`nodes` of
        `swarm/schemas/fleet.schema.json`). Raises `Unavailable` where no node answers."""
        found: dict[str, dict[str, Any]] = {}

        def take(page: Mapping[str, Any]) -> None:
            found.update({each["node"]: each for each in page["nodes"]})

        if not await ask_fleet(self.link, self.subjects, take):
            raise Unavailable(f"nobody answers on {self.subjects.fleet} at present")
        return found
