"""`infer.<model>` as a NATS micro service (ADR-32): for any NATS client, in JSON or MessagePack."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from nats.aio.client import Client
from nats.micro import add_service
from nats.micro.request import Request as MicroRequest
from nats.micro.service import EndpointConfig, Service, ServiceConfig

from swarm.errors import ResourceExhausted, Status, SwarmError
from swarm.ids import ulid
from swarm.services.control import NETWORK_ERRORS
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

Answer = Callable[[str, Request], Awaitable[Result]]  # (model, request) -> result


class InferService:
    """Serves `infer.<model>` on the subjects given; `answer(model, request)` does the work.

    Call `attach` with each new client, and `stop` once.
    """

    def __init__(
        self,
        name: str,
        version: str,
        metadata: dict[str, str],
        subjects: list[str],
        answer: Answer,
    ) -> None:
        self._config = ServiceConfig(
            name=name,
            version=version,
            description="a node of an edge swarm mesh",
            metadata=metadata,
        )
        self._subjects = subjects
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()
        self._service: Service | None = None
        self.refused = 0
        """Requests refused because too many were in flight."""

    async def attach(self, client: Client) -> None:
        """Register with service discovery, and listen if there is anything to serve."""
        self._service = await add_service(client, self._config)
        for subject in self._subjects:
            # None as metadata would become JSON null, which `nats service` cannot read.
            await self._service.add_endpoint(
                EndpointConfig(name="infer", subject=subject, handler=self._handle, metadata={})
            )

    async def _handle(self, request: MicroRequest) -> None:
        # nats-py awaits the handlers of a subscription one after another: each request gets a task.
        if len(self._tasks) >= MAX_IN_FLIGHT:
            self.refused += 1
            error = ResourceExhausted(f"{MAX_IN_FLIGHT} requests are in flight on this node")
            await _respond(request, _failure("", request.subject, error))
            return
        task = asyncio.create_task(self._serve(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, request: MicroRequest) -> None:
        model = request.subject.rsplit(".", 1)[1]
        try:
            try:
                data = request.data
                ask = oip.decode_request(data) if oip.is_json(data) else Request.decode(data)
                result = await self._answer(model, ask)
            except SwarmError as error:
                result = _failure("", model, error)
            try:
                await _respond(request, result)
            except NETWORK_ERRORS as error:
                log.info("an answer could not be sent: %r", error)
        except Exception:
            log.exception("a request to %s failed", request.subject)

    async def stop(self) -> None:
        """Take no more requests; those in flight end within `FINISH_TIMEOUT` or are cancelled."""
        if self._service is not None:
            try:
                await asyncio.wait_for(self._service.stop(), STOP_TIMEOUT)
            except NETWORK_ERRORS as error:
                log.debug("stopping the service: %r", error)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=FINISH_TIMEOUT)
        for task in self._tasks:
            task.cancel()


async def _respond(request: MicroRequest, result: Result) -> None:
    parts: list[Part]
    parts = [oip.encode_result(result)] if oip.is_json(request.data) else result.parts()
    headers = {}
    if result.status is not Status.OK:
        headers = {
            "Nats-Service-Error": result.message[:500].replace("\r", " ").replace("\n", " "),
            "Nats-Service-Error-Code": SERVICE_ERROR_CODES.get(result.status, "500"),
        }
    await request.respond(b"".join(parts), headers=headers)


def _failure(request_id: str, model: str, error: SwarmError) -> Result:
    return Result(request_id or ulid(), model, status=error.status, message=str(error))
