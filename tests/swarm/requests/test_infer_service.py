"""A client of `infer.<model>` hears of each failure at once, instead of waiting for its budget."""

from __future__ import annotations

import json

import numpy as np
import pytest
from real_server import Links
from support.waiting import GENEROUS

from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import Status
from swarm.requests.infer_service import Answer, InferService
from swarm.wire.messages import Request, Result

SUBJECT = "swarm.default.infer.digits"
IN_JSON = json.dumps(
    {"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
).encode()
IN_MESSAGEPACK = b"".join(Request({"x": np.ones(1, np.float32)}, "r1").parts())


async def too_large(model: str, request: Request) -> Result:
    return Result(request.id, model, outputs={"y": np.zeros(1 << 16, np.float32)})


async def echo(model: str, request: Request) -> Result:
    return Result(request.id, model, outputs=dict(request.inputs))


async def faulty(model: str, request: Request) -> Result:
    raise ValueError("a defect of the node")


@pytest.mark.parametrize("body", [IN_JSON, IN_MESSAGEPACK])
@pytest.mark.parametrize(
    ("answer", "status"),
    [(too_large, Status.INVALID_ARGUMENT), (faulty, Status.INTERNAL)],
)
async def test_an_answer_that_cannot_be_sent_or_made_is_a_failure_at_once(
    server: EmbeddedServer, links: Links, answer: Answer, status: Status, body: bytes
) -> None:
    link = await links.connect(server.url)
    link.max_payload = 1 << 16
    service = InferService(link, "swarm-default", "1.0.0", {}, [SUBJECT], answer)
    service.start()
    client = await links.connect(server.url)
    await link.flush()
    message = await client.request(SUBJECT, body, GENEROUS)
    assert b"Nats-Service-Error: " in (message.headers or b"")
    if body is IN_MESSAGEPACK:
        assert Result.decode(message.data).status is status
    else:
        assert "error" in json.loads(bytes(message.data))
    await service.stop()


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"hello", b"[1, 2]", b"0", b'"x"', b"<xml/>", "é".encode(), b"\xff\xfe{", b"\0"],
)
async def test_what_is_no_message_is_answered_in_json_with_the_form_that_is_right(
    server: EmbeddedServer, links: Links, body: bytes
) -> None:
    link = await links.connect(server.url)
    service = InferService(link, "swarm-default", "1.0.0", {}, [SUBJECT], echo)
    service.start()
    client = await links.connect(server.url)
    await link.flush()
    doc = json.loads(bytes((await client.request(SUBJECT, body, GENEROUS)).data))
    assert doc["status"] == "INVALID_ARGUMENT"
    assert '{"inputs": [{"name", "shape", "datatype", "data"}' in doc["error"]
    await service.stop()


async def test_an_answer_names_the_parameters_that_mean_nothing(
    server: EmbeddedServer, links: Links
) -> None:
    link = await links.connect(server.url)
    service = InferService(link, "swarm-default", "1.0.0", {}, [SUBJECT], echo)
    service.start()
    client = await links.connect(server.url)
    await link.flush()
    body = json.dumps(json.loads(IN_JSON) | {"parameters": {"bugdet_ms": 5}}).encode()
    doc = json.loads(bytes((await client.request(SUBJECT, body, GENEROUS)).data))
    assert doc["parameters"]["ignored"] == "bugdet_ms"
    await service.stop()
