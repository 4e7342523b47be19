"""Many requests under way on one stream; an end that the client understands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_rig import Gateway, gateway, numbers
from support.waiting import GENEROUS, eventually

from nodes.gateway.grpc.messages import INFERENCE, message
from nodes.gateway.grpc.server import GrpcBounds
from swarm.errors import Unavailable

ModelInferRequest = message("inference.ModelInferRequest")
ModelStreamInferResponse = message("inference.ModelStreamInferResponse")


@pytest.fixture
async def served() -> AsyncIterator[Gateway]:
    async with gateway(bounds=GrpcBounds(in_flight=4)) as running:
        yield running


@pytest.fixture
async def channel(served: Gateway) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(served.url) as connected:
        yield connected


def ask(number: int, id: str = "", **fields: Any) -> Any:
    """A request of `simple` whose first input counts from `number`."""
    request = ModelInferRequest(model_name="simple", id=id, **fields)
    for name, array in numbers(number).items():
        request.inputs.add(name=name, datatype="INT32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    return request


def opened(channel: Any, **options: Any) -> Any:
    method = channel.stream_stream(
        f"/{INFERENCE}/ModelStreamInfer",
        ModelInferRequest.SerializeToString,
        ModelStreamInferResponse.FromString,
    )
    return method(**options)


def first_of(response: Any) -> int:
    """The number that a request counted from."""
    raw = response.infer_response.raw_output_contents[1]
    return int.from_bytes(raw[:4], "little", signed=True) + 1


async def test_requests_with_ids_are_answered_as_soon_as_they_can_be(
    served: Gateway, channel: Any
) -> None:
    slow = asyncio.Event()

    async def delay(request: Any) -> None:
        if request.id == "slow":
            await slow.wait()

    served.mesh.delay = delay
    stream = opened(channel)
    for id in ("slow", "quick", "quicker"):
        await stream.write(ask(1, id))
    assert {(await stream.read()).infer_response.id for _ in range(2)} == {"quick", "quicker"}
    slow.set()
    last = await stream.read()
    assert last.infer_response.id == "slow"
    assert last.infer_response.parameters["triton_final_response"].bool_param
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is grpc.StatusCode.OK


async def test_requests_without_ids_are_answered_in_their_order(
    served: Gateway, channel: Any
) -> None:
    async def delay(request: Any) -> None:
        await asyncio.sleep(0.02 * (5 - int(request.inputs["INPUT0"].flat[0])))

    served.mesh.delay = delay
    stream = opened(channel)
    for number in range(5):
        await stream.write(ask(number))
    await stream.done_writing()
    assert [first_of(await stream.read()) for _ in range(5)] == [0, 1, 2, 3, 4]


async def test_a_stream_has_a_bound_of_requests_under_way(served: Gateway, channel: Any) -> None:
    served.mesh.held.clear()
    stream = opened(channel)
    for number in range(12):
        await stream.write(ask(number, str(number)))
    await stream.done_writing()
    await eventually(lambda: len(served.mesh.requests) == 4, "its bound is under way")
    await asyncio.sleep(0.05)  # in which a fifth one would have come
    assert len(served.mesh.requests) == 4
    served.mesh.held.set()
    answered = [response.infer_response.id async for response in stream]
    assert sorted(answered, key=int) == [str(number) for number in range(12)]


async def test_a_request_that_fails_says_why_and_the_stream_goes_on(
    served: Gateway, channel: Any
) -> None:
    stream = opened(channel)
    served.mesh.failing = Unavailable("nobody serves it")
    await stream.write(ask(1, "a"))
    failed = await stream.read()
    assert (failed.infer_response.id, failed.error_message) == ("a", "nobody serves it")
    served.mesh.failing = None
    await stream.write(ask(1, "b", parameters={}))
    assert (await stream.read()).infer_response.id == "b"
    await stream.write(ModelInferRequest(model_name="nobody", id="c"))
    assert "nobody" in (await stream.read()).error_message
    await stream.done_writing()
    assert await stream.code() is grpc.StatusCode.OK


async def test_a_client_may_ask_for_statuses_in_place_of_texts(
    served: Gateway, channel: Any
) -> None:
    served.mesh.failing = Unavailable("nobody serves it")
    stream = opened(channel, metadata=(("triton_grpc_error", "true"),))
    await stream.write(ask(1))
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stream.read()
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    assert failure.value.details() == "nobody serves it"


async def test_a_stream_that_its_client_leaves_cancels_its_requests(
    served: Gateway, channel: Any
) -> None:
    served.mesh.held.clear()
    stream = opened(channel)
    for id in "abc":
        await stream.write(ask(1, id))
    await eventually(lambda: len(served.mesh.requests) == 3, "all are under way")
    stream.cancel()
    await eventually(lambda: sorted(served.mesh.cancelled) == ["a", "b", "c"], "all are given up")
    await eventually(lambda: served.server.figures.in_flight == 0, "the call has ended")


async def test_a_gateway_that_ends_answers_what_it_took_and_tells_the_stream(
    served: Gateway, channel: Any
) -> None:
    served.mesh.held.clear()
    stream = opened(channel)
    for id in "abc":
        await stream.write(ask(1, id))
    await eventually(lambda: len(served.mesh.requests) == 3, "all are under way")
    draining = asyncio.create_task(served.server.drain(10.0))
    await asyncio.sleep(0)
    served.mesh.held.set()
    assert {(await stream.read()).infer_response.id for _ in range(3)} == {"a", "b", "c"}
    with pytest.raises(grpc.aio.AioRpcError, match="open another stream") as failure:
        await stream.read()
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    async with asyncio.timeout(GENEROUS):
        await draining
