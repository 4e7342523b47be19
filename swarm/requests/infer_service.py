"""`infer.<model>` as a NATS micro service (ADR-32): for any NATS client, in JSON or MessagePack."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Awaitable, Callable

from swarm.errors import Internal, ResourceExhausted, Status, SwarmError
from swarm.link import Link, LinkMessage
from swarm.requests.micro_service import Endpoint, MicroService
from swarm.requests.request import refused
from swarm.wire import oip
from swarm.wire.messages import Request, Result
from swarm.wire.tensors import Part

log = logging.getLogger("swarm.service")

MAX_IN_FLIGHT = 256  # requests that a node handles for such clients at a time
STOP_TIMEOUT, FINISH_TIMEOUT = 1.0, 5.0  # seconds to leave the service, to finish requests
SERVICE_ERROR_CODES = {
    Status.INVALID_ARGUMENT: "400",
    Status.UNAUTHENTICATED: "401",
    Status.PERMISSION_DENIED: "403",
    Status.NOT_FOUND: "404",
    Status.RESOURCE_EXHAUSTED: "429",
    Status.UNAVAILABLE: "503",
    Status.DEADLINE_EXCEEDED: "504",
}

_TRACEPARENT = re.compile(rb"\r\ntraceparent: *([^\r\n]{1,128})", re.IGNORECASE)

Answer = Callable[[str, Request], Awaitable[Result]]  # (model, request) -> result


class InferService:
    """Serves `infer.<model>` on the subjects given; `answer(model, request)` does the work.

    Call `start` once, and `stop` once.
    """

    def __init__(
        self,
        link: Link,
        name: str,
        version: str,
        metadata: dict[str, str],
        subjects: list[str],
        answer: Answer,
    ) -> None:
        self._link = link
        self._service = MicroService(
            link,
            name,
            version,
            "a node of an edge swarm mesh",
            metadata,
            self._handle,
            [Endpoint(subject) for subject in subjects],
        )
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()
        self.refused = 0
        """Requests refused because too many were in flight."""

    def start(self) -> None:
        """Register with service discovery, and listen if there is anything to serve."""
        self._service.start()

    def _handle(self, endpoint: Endpoint, message: LinkMessage) -> None:
        if len(self._tasks) >= MAX_IN_FLIGHT:
            self.refused += 1
            error = ResourceExhausted(f"{MAX_IN_FLIGHT} requests are in flight on this node")
            self._respond(message, refused("", message.subject, error))
            return
        task = asyncio.create_task(self._serve(endpoint, message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, endpoint: Endpoint, message: LinkMessage) -> None:
        model, began = message.subject.rsplit(".", 1)[1], time.perf_counter()
        try:
            try:
                data = message.data
                ask = oip.decode_request(data) if oip.is_json(data) else Request.decode(data)
                ask.traceparent = ask.traceparent or _traceparent(message)
                result = await self._answer(model, ask)
            except SwarmError as error:
                result = refused("", model, error)
            endpoint.done(time.perf_counter() - began, result.message)
            try:
                self._respond(message, result)
            except SwarmError as error:
                log.info("an answer could not be sent: %r", error)
                self._say_why(message, result.id, error)
        except Exception:
            log.exception("a request to %s failed", message.subject)
            self._say_why(message, "", Internal("a fault of the node, which its log describes"))

    def _say_why(self, message: LinkMessage, request_id: str, error: SwarmError) -> None:
        """Else the client would wait until its budget ends."""
        model = message.subject.rsplit(".", 1)[1]
        with contextlib.suppress(SwarmError):  # without a connection nobody can be told
            self._respond(message, refused(request_id, model, error))

    async def stop(self) -> None:
        """Take no more requests; those in flight end within `FINISH_TIMEOUT` or are cancelled."""
        await self._service.stop(STOP_TIMEOUT)
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


def service_error(status: Status, message: str) -> bytes:
    """The headers of a failure (ADR-32)."""
    text = message[:500].replace("\r", " ").replace("\n", " ")
    code = SERVICE_ERROR_CODES.get(status, "500")
    return (
        f"NATS/1.0\r\nNats-Service-Error: {text}\r\nNats-Service-Error-Code: {code}\r\n\r\n"
    ).encode()


def _traceparent(message: LinkMessage) -> str:
    """The header `traceparent` of a message, "" for none."""
    found = _TRACEPARENT.search(message.headers or b"")
    return "" if found is None else found[1].decode("ascii", "replace")
