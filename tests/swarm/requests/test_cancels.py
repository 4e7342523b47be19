"""A simple client ends its request by the id and the key that it gave; nobody else does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from real_server import Links
from support.waiting import GENEROUS, eventually

import swarm
from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import DecodeError
from swarm.link import Link
from swarm.requests.cancels import Cancels, word
from swarm.requests.infer_service import InferService
from swarm.wire import oip
from swarm.wire.maps import pack
from swarm.wire.messages import Request, Result

pytestmark = pytest.mark.integration

ASK, END = "swarm.default.infer.m", "swarm.default.cancel.m"
KEY, OTHER = "0123456789abcdef", "fedcba9876543210"
INPUTS = [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]
X = {"x": np.ones(1, np.float32)}


def in_json(id_: str, key: str) -> bytes:
    return json.dumps({"id": id_, "inputs": INPUTS, "parameters": {"key": key}}).encode()


class Nodes:
    """Two that answer, and whose answers never come unless somebody ends them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []

    async def answer(self, model: str, request: Request) -> Result:
        self.begun.append(request.id)
        try:
            await asyncio.Event().wait()  # for ever
        finally:
            self.ended.append(request.id)
        raise AssertionError


@pytest.fixture
async def nodes(server: EmbeddedServer, links: Links) -> Nodes:
    made = Nodes()
    for _ in range(2):
        link = await links.connect(server.url)
        InferService(link, "swarm-default", "1.0.0", {}, [ASK], made.answer).start()
        await link.flush()
    return made


async def asked(client: Link, nodes: Nodes, *bodies: bytes) -> list[asyncio.Task[Any]]:
    before = len(nodes.begun)
    tasks = [asyncio.create_task(client.request(ASK, body, 30.0)) for body in bodies]
    await eventually(lambda: len(nodes.begun) == before + len(bodies))
    return tasks


async def test_the_one_that_has_it_ends_it_and_both_are_told(
    server: EmbeddedServer, links: Links, nodes: Nodes
) -> None:
    client = await links.connect(server.url)
    for body, end in (
        (in_json("1", KEY), json.dumps({"id": "1", "key": KEY}).encode()),
        (b"".join(Request(X, "1", key=KEY).parts()), pack({"id": "1", "key": KEY})),
        (b"".join(Request(X, "1", key=KEY).parts()), json.dumps({"id": "1", "key": KEY}).encode()),
    ):
        (task,) = await asked(client, nodes, body)
        told = await client.request(END, end, GENEROUS)
        assert b"cancelled" in bytes(told.data)
        answer = (await task).data
        decode = oip.decode_result if oip.is_json(answer) else Result.decode
        assert (decode(answer).id, str(decode(answer).status)) == ("1", "CANCELLED")
    assert nodes.ended == ["1"] * 3


async def test_who_knows_the_id_and_not_the_key_ends_nothing(
    server: EmbeddedServer, links: Links, nodes: Nodes
) -> None:
    client, thief = await links.connect(server.url), await links.connect(server.url)
    tasks = await asked(client, nodes, in_json("1", KEY), in_json("2", ""), in_json("1", OTHER))
    for doc in (
        {"id": "1"},
        {"id": "1", "key": ""},
        {"id": "1", "key": KEY[:-1] + "0"},
        {"id": "2", "key": KEY},
        {"id": "2", "key": ""},
        {"id": "*", "key": "*" * 16},
        {"key": KEY},
        7,
    ):
        thief.publish(END, json.dumps(doc).encode())
    for data in (b"", b"1", b"\x81", bytes(5000), word(Request(X, "1", key=KEY)) + b"\0"):
        thief.publish(END, data)
    thief.publish("swarm.default.cancel.other", word(Request(X, "1", key=KEY)))
    refused = json.loads(bytes((await thief.request(END, b"1", GENEROUS)).data))
    assert refused["status"] == "INVALID_ARGUMENT"
    assert KEY not in refused["error"]
    assert nodes.ended == []
    client.publish(END, word(Request(X, "1", key=KEY)))
    await eventually(lambda: nodes.ended == ["1"])
    assert [task.done() for task in tasks[1:]] == [False, False]
    await tasks[0]
    for task in tasks:
        task.cancel()


async def test_a_word_that_comes_with_its_request_ends_it(
    server: EmbeddedServer, links: Links, nodes: Nodes
) -> None:
    client = await links.connect(server.url)
    task = asyncio.create_task(client.request(ASK, in_json("1", KEY), 30.0))
    await asyncio.sleep(0)
    client.publish(END, word(Request(X, "1", key=KEY)))
    assert json.loads(bytes((await task).data))["status"] == "CANCELLED"


async def test_a_cancelled_call_of_python_is_computed_no_further(
    server: EmbeddedServer, nodes: Nodes
) -> None:
    async with swarm.connect(server.url) as mesh:
        task = asyncio.create_task(mesh.ask_service("m", X, 30.0))
        await eventually(lambda: len(nodes.begun) == 1)
        task.cancel()
        await eventually(lambda: nodes.ended == nodes.begun)


@pytest.mark.parametrize("key", ["short", "x" * 129, 7, None, ["a"] * 16])
def test_a_key_that_could_be_guessed_is_refused_and_not_repeated(key: Any) -> None:
    doc = {"inputs": INPUTS, "parameters": {"key": key}}
    with pytest.raises(DecodeError, match="key: a secret") as caught:
        oip.decode_request(json.dumps(doc).encode())
    assert "short" not in str(caught.value)
    assert KEY not in repr(Request(X, key=KEY))


async def test_nothing_of_a_request_is_kept_behind_it() -> None:
    cancels, request = Cancels(), Request(X, "1", key=KEY)
    with cancels.running("m", request):
        pass
    assert cancels.end("m", word(request)) == ("1", 0)
    assert not cancels.was_ended()
