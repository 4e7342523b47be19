"""The bytes of all requests that a gateway has in hand are bounded, whatever way they come."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import numpy as np
import pytest
from grpc_rig import gateway, numbers
from http_rig import Door, binary, door, doubled, message
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import eventually

from nodes.gateway.grpc.messages import INFERENCE, ModelInferRequest, ModelStreamInferResponse
from nodes.gateway.hand import BytesInHand
from swarm.errors import ResourceExhausted
from swarm.wire.messages import Request, Result

ROWS = np.zeros((50_000, 4), np.float32)  # 0.8 MB
BODY, HEADER = binary(ROWS)
INFER = "/v2/models/m/infer"
BOUNDS: dict[str, Any] = {"body": 1_000_000, "bodies": 1_500_000}


class Held:
    """An answer that waits until it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def answer(self, model: str, request: Request) -> Result:
        await self.go.wait()
        return await doubled(model, request)


@contextlib.asynccontextmanager
async def one_in_hand(**settings: Any) -> AsyncIterator[Door]:
    """A door of 1.5 MB with one request of 0.8 MB under way, which is answered behind the block;
    then nothing is in hand."""
    held = Held()
    async with door(held.answer, **(BOUNDS | settings)) as opened:
        client = await opened.connect()
        client.send(message(INFER, BODY, **HEADER))
        await eventually(lambda: opened.inference.in_flight == 1, "it is under way")
        assert opened.inference.hand.held == len(BODY)
        yield opened
        held.go.set()
        assert (await client.reply()).code == 200
        assert (await opened.infer(BODY, **HEADER)).code == 200
        await eventually(lambda: opened.inference.hand.held == 0, "nothing is in hand")


async def test_a_body_above_the_bound_is_refused_before_it_comes() -> None:
    async with one_in_hand() as opened:
        client = await opened.connect()
        client.send(message(INFER, BODY, **HEADER)[: -len(BODY)])
        reply = await client.reply()
        assert (reply.code, reply.headers["retry-after"]) == (429, "1")
        assert "in hand" in reply.error
        assert (await opened.ask("/v2/health/ready")).code == 200


async def test_a_body_above_the_bound_is_503_where_that_is_wanted() -> None:
    async with one_in_hand(full_is_503=True) as opened:
        assert (await opened.infer(BODY, **HEADER)).code == 503


async def test_a_body_that_does_not_say_its_length_is_refused_on_the_way() -> None:
    async with one_in_hand() as opened:
        client = await opened.connect()
        client.send(message(INFER, b"", Transfer_Encoding="chunked", **HEADER))
        client.send(b"".join(b"%x\r\n%b\r\n" % (1 << 16, bytes(1 << 16)) for _ in range(20)))
        assert (await client.reply()).code == 429


async def test_a_small_body_that_becomes_large_is_refused() -> None:
    async with one_in_hand() as opened:
        packed = gzip.compress(BODY)
        reply = await opened.infer(packed, Content_Encoding="gzip", **HEADER)
        assert (len(packed) < 10_000, reply.code) == (True, 429)


async def test_clients_that_go_away_give_their_room_back() -> None:
    async with one_in_hand() as opened:
        before = opened.inference.hand.held
        client = await opened.connect()
        client.send(message(INFER, bytes(500_000))[:-250_000])
        await eventually(lambda: opened.inference.hand.held == before + 500_000, "it is awaited")
        client.close()
        await eventually(lambda: opened.inference.hand.held == before, "it is given up")


async def test_grpc_and_its_streams_are_refused_above_the_bound() -> None:
    request = ModelInferRequest(model_name="simple", id="large")
    for name, array in numbers().items():
        request.inputs.add(name=name, datatype="INT32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
    request.parameters["filler"].string_param = "x" * 600_000
    async with (
        gateway(body=1_000_000, bodies=1_000_000) as running,
        grpc.aio.insecure_channel(running.url) as channel,
    ):
        infer = channel.unary_unary(f"/{INFERENCE}/ModelInfer", ModelInferRequest.SerializeToString)
        running.mesh.held.clear()
        first = infer(request)
        await eventually(lambda: len(running.mesh.requests) == 1, "one is under way")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await infer(request)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "retry-after-ms" in dict(refused.value.trailing_metadata())
        stream = channel.stream_stream(
            f"/{INFERENCE}/ModelStreamInfer",
            ModelInferRequest.SerializeToString,
            ModelStreamInferResponse.FromString,
        )()
        await stream.write(request)
        assert "in hand" in (await stream.read()).error_message
        running.mesh.held.set()
        await first
        await stream.write(request)
        assert (await stream.read()).error_message == ""
        await stream.done_writing()
        assert running.server.figures.by_code["RESOURCE_EXHAUSTED"] == 1


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(0, 120))
def test_what_is_held_is_never_above_the_bound_and_all_of_it_is_given_back(
    sizes: list[int], most: int
) -> None:
    hand = BytesInHand(most)
    with contextlib.ExitStack() as requests:
        taken = 0
        for size in sizes:
            try:
                requests.enter_context(hand.holding(size))
                taken += size
            except ResourceExhausted:
                assert taken + size > most
            assert hand.held == taken <= most
    assert hand.held == 0
