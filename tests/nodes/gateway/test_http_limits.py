"""Clients that are slow, endless, gone, or too many: each is refused or let go, the others are
served."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from http_rig import INPUT, Client, Door, binary, door, doubled, message, tensor
from support.waiting import eventually

from nodes.gateway.http.connection import HttpBounds
from swarm.wire.messages import Request, Result

ONE = json.dumps({"inputs": [tensor()]}).encode()


async def served(opened: Door) -> None:
    """Another client is answered."""
    assert (await opened.infer(ONE)).code == 200


async def test_a_client_that_goes_away_cancels_its_request() -> None:
    under_way, cancelled = asyncio.Event(), asyncio.Event()

    async def answer(model: str, request: Request) -> Result:
        under_way.set()
        try:
            await asyncio.Event().wait()  # for ever
        finally:
            cancelled.set()
        raise AssertionError

    async with door(answer) as opened:
        client = await opened.connect()
        client.send(message("/v2/models/m/infer", ONE))
        await under_way.wait()
        client.close()
        async with asyncio.timeout(20.0):
            await cancelled.wait()
        await eventually(lambda: opened.server.figures.in_flight == 0, "it is forgotten")
        assert opened.inference.in_flight == 0


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"", None),
        (b"POST /v2/models/m/inf", 408),
        (b"POST /v2 HTTP/1.1\r\nx: 1\r\n", 408),
        (b"POST /v2/models/m/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{", 408),
        (
            b"POST /v2/models/m/infer HTTP/1.1\r\nhost: localhost\r\n"
            b"transfer-encoding: chunked\r\n\r\n5\r\n12",
            408,
        ),
    ],
)
async def test_a_client_that_sends_too_slowly_is_let_go(sent: bytes, code: int | None) -> None:
    bounds = HttpBounds(head_time=0.2, body_time=0.2, idle_time=30.0)
    async with door(bounds=bounds) as opened:
        client = await opened.connect()
        client.send(sent)
        said = await client.end()
        assert said[:12] == (f"HTTP/1.1 {code}".encode() if code else b"")
        await served(opened)


async def test_slow_senders_by_the_hundred_leave_the_others_their_answers() -> None:
    async with door(bounds=HttpBounds(head_time=3.0)) as opened:
        slow = []
        for number in range(500):
            # At once: who has sent nothing in that time is let go without a word.
            slow.append(await opened.connect())
            head = b"POST /v2/models/m/infer HTTP/1.1\r\nx-slow: 1\r\n"
            slow[-1].send(head[: 10 + number % 40])
        client = await opened.connect()
        for _ in range(50):
            assert (await opened.ask("/v2/models/m/infer", ONE, client=client)).code == 200
        ends = await asyncio.gather(*(each.end() for each in slow))
        assert {end[:12] for end in ends} == {b"HTTP/1.1 408"}
        await eventually(lambda: opened.server.figures.connections == 1, "all are let go")
        assert (await opened.ask("/v2/models/m/infer", ONE, client=client)).code == 200


async def test_more_connections_than_there_may_be_are_refused_at_once() -> None:
    async with door(bounds=HttpBounds(connections=2)) as opened:
        first, second = await opened.connect(), await opened.connect()
        for client in (first, second):
            assert (await opened.ask("/v2/health/live", client=client)).code == 200
        assert b"503" in (await (await opened.connect()).end())[:12]
        first.close()
        await eventually(lambda: opened.server.figures.connections == 1, "one is gone")
        await served(opened)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"x: 1\r\n" * 200, 431),
        (b"x: " + b"1" * 40_000 + b"\r\n", 431),
        (b"x: " + b"1" * 40_000, 431),  # without an end
        (b"x" * 40_000, 431),
        (b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"content-length: -1\r\n\r\n", 400),
        (b"content-length: 99999999999999999999\r\n\r\n", 400),
        (b"content-length: 2\r\ncontent-length: 3\r\n\r\n", 400),
        (b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n", 400),
        (b"no header\r\n\r\n", 400),
        (b"a\x00b: 1\r\n\r\n", 400),
    ],
)
async def test_headers_without_end_or_sense_are_refused(sent: bytes, code: int) -> None:
    async with door() as opened:
        client = await opened.connect()
        client.send(b"POST /v2/models/m/infer HTTP/1.1\r\nhost: localhost\r\n" + sent)
        said = await client.end()
        assert said.split(b"\r\n")[0].split()[1] == b"%d" % code, said
        await served(opened)


async def test_bytes_that_are_no_http_are_refused_in_json() -> None:
    async with door() as opened:
        client = await opened.connect()
        client.send(b"\x16\x03\x01\x02\x00\x01 TLS?\r\n\r\n")
        said = await client.end()
        assert said.startswith(b"HTTP/1.1 400")
        assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]


@pytest.mark.parametrize(
    "flood", [b"0\r\nx: " + b"1" * 40_000, b"0\r\n" + b"x: 1\r\n" * 200, b"2;" + b"x" * 40_000]
)
async def test_what_stands_around_the_pieces_of_a_body_is_bounded_too(flood: bytes) -> None:
    async with door() as opened:
        client = await opened.connect()
        client.send(message("/v2/models/m/infer", b"", Transfer_Encoding="chunked"))
        await eventually(lambda: opened.server.figures.in_flight == 1, "its headers have come")
        client.send(flood)
        assert (await client.end()).startswith(b"HTTP/1.1 431")
        await served(opened)


async def read_on(client: Client) -> int:
    """The code of the next reply."""
    return (await client.reply()).code


async def test_a_body_over_the_limit_is_refused_and_the_connection_goes_on() -> None:
    async with door(body=1_000_000) as opened:
        client = await opened.connect()
        announced = message("/v2/models/m/infer", b"", Content_Length="2000000", method="POST")
        announced = announced.replace(b"Content-Length: 0\r\n", b"")
        client.send(announced)
        assert await read_on(client) == 413  # before its body comes
        client.send(bytes(2_000_000) + message("/v2/models/m/infer", ONE))
        assert await read_on(client) == 200
        chunked = message("/v2/models/m/infer", b"", Transfer_Encoding="chunked")
        piece = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
        client.send(chunked + piece * 20 + b"0\r\n\r\n" + message("/v2/models/m/infer", ONE))
        assert await read_on(client) == 413
        assert await read_on(client) == 200


async def test_a_refused_body_that_never_ends_is_not_read_for_ever() -> None:
    async with door(body=1_000_000, bounds=HttpBounds(body_time=0.3)) as opened:
        client = await opened.connect()
        client.send(message("/v2/models/m/infer", b"", Transfer_Encoding="chunked"))
        piece = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
        client.send(piece * 20)
        assert await read_on(client) == 413
        await client.end()
        await served(opened)


async def test_a_body_comes_in_pieces_of_any_size_and_after_a_question() -> None:
    rows = np.arange(40_000, dtype=np.float32).reshape(-1, 4)
    body, header = binary(rows, parameters={"binary_data_output": True})
    async with door() as opened:
        client = await opened.connect()
        pieces = [body[i : i + 7] for i in range(0, 7_000, 7)] + [body[7_000:]]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
        start = message("/v2/models/m/infer", b"", Transfer_Encoding="chunked", **header)
        client.send(start + chunks + b"0\r\n\r\n")
        assert np.array_equal((await client.reply()).tensors()["double"], 2 * rows)
        asked = message("/v2/models/m/infer", body, Expect="100-continue", **header)
        client.send(asked[: -len(body)])
        async with asyncio.timeout(20.0):
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        client.send(body)
        assert np.array_equal((await client.reply()).tensors()["double"], 2 * rows)


async def test_requests_one_behind_the_other_are_answered_in_order() -> None:
    async with door() as opened:
        client = await opened.connect()
        asked = [
            message("/v2/models/m/infer", binary(INPUT * n)[0], **binary(INPUT * n)[1])
            for n in range(20)
        ]
        client.send(b"".join(asked))
        for number in range(20):
            assert np.array_equal((await client.reply()).tensors()["double"], 2 * number * INPUT)


async def test_at_its_end_the_door_answers_what_is_under_way_and_takes_no_more() -> None:
    let, under_way = asyncio.Event(), asyncio.Event()

    async def answer(model: str, request: Request) -> Result:
        under_way.set()
        await let.wait()
        return await doubled(model, request)

    async with door(answer) as opened:
        client, idle = await opened.connect(), await opened.connect()
        assert (await opened.ask("/v2/health/ready", client=idle)).code == 200
        client.send(message("/v2/models/m/infer", ONE))
        await under_way.wait()
        opened.server.begin_drain()
        reply = await opened.ask("/v2/health/ready", client=idle)
        assert (reply.code, reply.headers["connection"]) == (503, "close")
        ending = asyncio.create_task(opened.server.drain(10.0))
        await idle.end()

        async def refuses() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", opened.server.port)
            except ConnectionError:
                return True
            writer.close()
            return False

        await eventually(refuses, "no connection is taken")
        let.set()
        assert await read_on(client) == 200
        await ending


async def test_a_client_that_never_reads_its_answer_is_let_go() -> None:
    rows = np.zeros((1_000_000, 4), np.float32)
    body, header = binary(rows, parameters={"binary_data_output": True})
    async with door(bounds=HttpBounds(idle_time=0.2)) as opened:
        client = await opened.connect()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        client.send(message("/v2/models/m/infer", body, **header))
        await eventually(lambda: opened.server.figures.by_code["200"] == 1, "it is written")
        await served(opened)
        await eventually(lambda: opened.server.figures.connections == 0, "both are let go")
