"""`infer.<model>` as a NATS micro service (ADR-32): for any NATS client, in JSON or MessagePack."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable

from swarm.errors import (
    Cancelled,
    DecodeError,
    Internal,
    NotConnected,
    ResourceExhausted,
    Status,
    SwarmError,
)
from swarm.link import Link, LinkMessage
from swarm.requests.cancels import Cancels
from swarm.requests.micro_service import Endpoint, MicroService
from swarm.requests.repeats import Repeats
from swarm.requests.request import refused
from swarm.requests.witness import key_of
from swarm.requests.witnessing import Notices
from swarm.wire import oip
from swarm.wire.maps import pack
from swarm.wire.messages import Request, Result, read_priority
from swarm.wire.tensors import Part
from swarm.wire.urgency import NORMAL, room_for, urgency_of

log = logging.getLogger("swarm.service")

MAX_IN_FLIGHT = 256  # requests that a node handles for such clients at a time
STOP_TIMEOUT, FINISH_TIMEOUT = 1.0, 5.0  # seconds to leave the service, to finish requests
SERVICE_ERROR_CODES = {
    Status.CANCELLED: "499",
    Status.INVALID_ARGUMENT: "400",
    Status.UNAUTHENTICATED: "401",
    Status.PERMISSION_DENIED: "403",
    Status.NOT_FOUND: "404",
    Status.RESOURCE_EXHAUSTED: "429",
    Status.UNAVAILABLE: "503",
    Status.DEADLINE_EXCEEDED: "504",
}

_TRACEPARENT = re.compile(rb"\r\ntraceparent: *([^\r\n]{1,128})", re.IGNORECASE)
_PRIORITY = re.compile(rb"\r\nswarm-priority: *([^\r\n]{1,128})", re.IGNORECASE)

Answer = Callable[[str, Request], Awaitable[Result]]  # (model, request) -> result


class InferService:
    """Serves `infer.<model>` on the subjects given; `answer(model, request)` does the work.

    Call `start` once, and `stop` once. notices: tell the witnesses what is in hand, where there may
    be any. budget: seconds of a request that names none.
    """

    def __init__(
        self,
        link: Link,
        name: str,
        version: str,
        metadata: dict[str, str],
        subjects: list[str],
        answer: Answer,
        notices: Notices | None = None,
        budget: float = 5.0,
    ) -> None:
        self._link = link
        self._notices = notices
        self._budget = budget
        self._service = MicroService(
            link,
            name,
            version,
            "a node of an edge swarm mesh",
            metadata,
            self._handle,
            [Endpoint(subject) for subject in subjects],
        )
        self._answer = Repeats(answer).answer
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancels = Cancels()
        self._listening: list[int] = []
        self.refused = 0
        """Requests refused because too many were in flight."""

    def start(self) -> None:
        """Register with service discovery, and listen if there is anything to serve."""
        self._service.start()
        for endpoint in self._service.endpoints:
            self._hear_cancels(endpoint.subject)

    def also(self, subject: str) -> None:
        """Serve one more subject."""
        self._service.also(subject)
        self._hear_cancels(subject)

    def _hear_cancels(self, subject: str) -> None:
        root, _, model = subject.rpartition(".infer.")
        self._listening.append(self._link.subscribe(f"{root}.cancel.{model}", self._cancel_soon))

    def _cancel_soon(self, message: LinkMessage) -> None:
        """Behind the requests that came with it, which begin in this turn of the loop."""
        asyncio.get_running_loop().call_soon(self._cancel, message)

    def _cancel(self, message: LinkMessage) -> None:
        """A client ends a request, of whichever node has it: that one says so."""
        try:
            id_, ended = self._cancels.end(model_of(message), message.data)
            answer: dict[str, object] = {"id": id_, "cancelled": ended}
        except DecodeError as error:
            answer, ended = {"error": str(error), "status": str(error.status)}, 1
        if message.reply and ended:
            data = json.dumps(answer).encode() if oip.is_json(message.data) else pack(answer)
            with contextlib.suppress(SwarmError):  # the request's own answer tells too
                self._link.publish(message.reply, data)

    def take(self, message: LinkMessage, waited: float) -> None:
        """Answer a request in the place of a node that has not, for `waited` seconds."""
        self._handle(self._service.endpoints[0], message, waited)

    def _handle(self, endpoint: Endpoint, message: LinkMessage, waited: float = 0.0) -> None:
        key = b""
        if self._notices is not None and message.reply:
            key = key_of(message.reply, message.data)
            self._notices.began(model_of(message), key)
        under_way = len(self._tasks)
        if under_way >= MAX_IN_FLIGHT and under_way >= room_for(MAX_IN_FLIGHT, _urgency(message)):
            self.refused += 1
            error = ResourceExhausted(f"{under_way} requests are in flight on this node")
            self._end(message, key, self._sent(message, refused("", message.subject, error)))
            return
        task = asyncio.create_task(self._serve(endpoint, message, key, waited))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(
        self, endpoint: Endpoint, message: LinkMessage, key: bytes, waited: float
    ) -> None:
        model, began = model_of(message), time.perf_counter()
        answered = False
        try:
            try:
                data = message.data
                ask = oip.decode_request(data) if oip.is_json(data) else Request.decode(data)
                ask.traceparent = ask.traceparent or _traceparent(message)
                if message.headers:
                    ask.priority = read_priority(_priority(message)) or ask.priority
                if waited:
                    budget = self._budget if ask.budget is None else ask.budget
                    ask.budget = max(0.0, budget - waited)
                try:
                    with self._cancels.running(model, ask):
                        result = await self._answer(model, ask)
                except asyncio.CancelledError:
                    if not self._cancels.was_ended():
                        raise
                    result = refused(ask.id, model, Cancelled("its client has ended it"))
                result.ignored = ask.ignored
            except SwarmError as error:
                result = refused("", model, error)
            endpoint.done(time.perf_counter() - began, result.message)
            answered = self._sent(message, result)
        except Exception:
            log.exception("a request to %s failed", message.subject)
            fault = Internal("a fault of the node, which its log describes")
            answered = self._sent(message, refused("", model, fault))
        finally:
            self._end(message, key, answered)

    def _end(self, message: LinkMessage, key: bytes, answered: bool) -> None:
        """Tell the witnesses: one of them answers what this node could not."""
        if self._notices is not None and key:
            end = self._notices.ended if answered else self._notices.dropped
            end(model_of(message), key)

    def _sent(self, message: LinkMessage, result: Result) -> bool:
        """Send an answer or, where it cannot be sent, why; False without a connection."""
        try:
            self._respond(message, result)
        except NotConnected as error:
            log.info("an answer could not be sent: %r", error)
            return False
        except SwarmError as error:
            log.info("an answer could not be sent: %r", error)
            return self._say_why(message, result.id, error)
        return True

    def _say_why(self, message: LinkMessage, request_id: str, error: SwarmError) -> bool:
        """Else the client would wait until its budget ends."""
        try:
            self._respond(message, refused(request_id, model_of(message), error))
        except SwarmError:  # without a connection nobody can be told
            return False
        return True

    async def stop(self) -> None:
        """Take no more requests; those in flight end within `FINISH_TIMEOUT` or are cancelled."""
        await self._service.stop(STOP_TIMEOUT)
        try:
            await self._finish()
        finally:
            for sid in self._listening:
                self._link.unsubscribe(sid)

    async def _finish(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FINISH_TIMEOUT)
        for task in self._tasks:
            task.cancel()

    def _respond(self, message: LinkMessage, result: Result) -> None:
        """Raises `NotConnected`, and `MessageTooLarge`."""
        if not message.reply:
            return
        parts: list[Part]
        parts = [oip.encode_result(result)] if oip.is_json(message.data) else result.parts()
        headers = b""
        if result.status is not Status.OK:
            headers = service_error(result.status, result.message)
        self._link.publish(message.reply, parts, headers=headers)


def model_of(message: LinkMessage) -> str:
    """The model that a request is for."""
    return message.subject.rsplit(".", 1)[1]


def service_error(status: Status, message: str) -> bytes:
    """The headers of a failure (ADR-32)."""
    text = message[:500].replace("\r", " ").replace("\n", " ")
    code = SERVICE_ERROR_CODES.get(status, "500")
    return (
        f"NATS/1.0\r\nNats-Service-Error: {text}\r\nNats-Service-Error-Code: {code}\r\n\r\n"
    ).encode()


def _priority(message: LinkMessage) -> str:
    """The header `swarm-priority` of a message, "" for none."""
    found = _PRIORITY.search(message.headers or b"")
    return "" if found is None else found[1].decode("ascii", "replace").strip()


def _urgency(message: LinkMessage) -> int:
    """By its header alone: where too many are in hand, none is read for its priority."""
    try:
        return urgency_of(read_priority(_priority(message)))
    except DecodeError:
        return NORMAL


def _traceparent(message: LinkMessage) -> str:
    """The header `traceparent` of a message, "" for none."""
    found = _TRACEPARENT.search(message.headers or b"")
    return "" if found is None else found[1].decode("ascii", "replace")
