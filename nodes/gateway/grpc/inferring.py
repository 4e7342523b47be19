"""The methods that infer: one request, and a stream with many of them under way."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from nodes.gateway.call import Caller
from nodes.gateway.grpc.answers import error_text, fill
from nodes.gateway.grpc.calls import Call, readable
from nodes.gateway.grpc.decode import infer_call
from nodes.gateway.grpc.messages import ModelInferResponse, ModelStreamInferResponse
from nodes.gateway.inference import Inference
from nodes.gateway.shared_memory import Regions
from nodes.gateway.statuses import FAULT
from swarm.errors import SwarmError, Unavailable

log = logging.getLogger("swarm.gateway")

FINAL = "triton_final_response"  # Triton's, of each answer in a stream: whether it is the last one


class Inferring:
    """regions: None where shared memory is off. most_in_flight: requests of one stream at a time;
    the next ones are read when there is room."""

    def __init__(self, inference: Inference, regions: Regions | None, most_in_flight: int) -> None:
        self._inference = inference
        self._regions = regions
        self._most_in_flight = most_in_flight
        self._readers: set[asyncio.Task[None]] = set()

    def drain(self) -> None:
        """Streams take no more requests, and end behind their last answer."""
        for reader in self._readers:
            reader.cancel()

    async def infer(self, request: Any, call: Call) -> Any:
        """Of `ModelInfer`. To cancel it cancels the request."""
        response = ModelInferResponse()
        await self.infer_into(response, request, call, call.caller)
        return response

    async def infer_into(self, response: Any, request: Any, call: Call, caller: Caller) -> None:
        """response: an empty `ModelInferResponse`. Raises `ResourceExhausted` where there is no
        room for the request beside all that are in hand."""
        with self._inference.hand.holding(request.ByteSize()):
            asked = infer_call(request, caller, call.headers, call.remaining, self._regions)
            fill(response, await self._inference.run(asked), asked, self._regions)

    async def stream(self, requests: Any, call: Call) -> None:
        """Of `ModelStreamInfer`. A request with an id is answered as soon as it can be. Those
        without one are answered in their order: their client has nothing else to tell them apart.

        A failed request has its text in `error_message`, and the stream goes on. Where the client's
        metadata has `triton_grpc_error: true`, the first failure ends the stream with its status.
        """
        stream = _Stream(self, call, self._most_in_flight)
        try:
            async with asyncio.TaskGroup() as group:
                reader = group.create_task(stream.read(requests, group), name="requests")
                self._readers.add(reader)
                reader.add_done_callback(self._readers.discard)
        except BaseExceptionGroup as errors:
            failures, rest = errors.split(SwarmError)
            if failures is None or rest is not None:
                raise
            raise failures.exceptions[0] from None
        if reader.cancelled():
            raise Unavailable(
                "this gateway ends: open another stream, and send those requests again that have "
                "no answer"
            )


class _Stream:
    """One client's stream of requests, and the tasks that answer them."""

    def __init__(self, inferring: Inferring, call: Call, most_in_flight: int) -> None:
        self._inferring = inferring
        self._call = call
        self._room = asyncio.Semaphore(most_in_flight)
        self._writing = asyncio.Lock()
        self._ends_with_failure = call.headers.get("triton_grpc_error") == "true"
        self._last_in_order: asyncio.Event | None = None

    async def read(self, requests: Any, group: asyncio.TaskGroup) -> None:
        """Start a task for each request; returns when the client has sent its last one."""
        async for request in requests:
            await self._room.acquire()
            before = written = None
            if not getattr(request, "id", ""):
                before, written = self._last_in_order, asyncio.Event()
                self._last_in_order = written
            group.create_task(self._answer(request, before, written), name="request of a stream")

    async def _answer(
        self, request: Any, before: asyncio.Event | None, written: asyncio.Event | None
    ) -> None:
        """before: is set once this answer may be written. written: to be set once it is."""
        response = ModelStreamInferResponse()
        try:
            try:
                caller = self._call.ask_again()  # its quota, and whether it still may
                await self._inferring.infer_into(
                    response.infer_response, readable(request), self._call, caller
                )
            except SwarmError as error:
                if self._ends_with_failure:
                    raise
                response = _failed(request, error_text(error))
            except Exception:
                log.exception("a request of a stream failed")
                response = _failed(request, FAULT)
            response.infer_response.parameters[FINAL].bool_param = True
            if before is not None:
                await before.wait()
            async with self._writing:
                await self._call.context.write(response)
        finally:
            self._room.release()
            if written is not None:
                written.set()


def _failed(request: Any, text: str) -> Any:
    """The answer to a request that failed. The client knows it by its id."""
    response = ModelStreamInferResponse(error_message=text)
    inner = response.infer_response
    for field in ("id", "model_name", "model_version"):
        setattr(inner, field, getattr(request, field, ""))
    return response
