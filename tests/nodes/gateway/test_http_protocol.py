"""What clients of HTTP say and hear, byte by byte."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from http_rig import HOPS, INPUT, Door, binary, bomb, door, doubled, message, tensor

from nodes.gateway.call import Region
from swarm.errors import PermissionDenied, ResourceExhausted, Status, Unauthenticated
from swarm.wire.messages import Request, Result

DOUBLE = 2 * INPUT

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def plain() -> AsyncIterator[Door]:
    """A door as it is without options."""
    async with door() as opened:
        yield opened


async def test_an_answer_has_what_the_protocol_and_the_mesh_say(plain: Door) -> None:
    reply = await plain.infer({"id": "mine", "inputs": [tensor()]})
    document = reply.document
    assert reply.code == 200
    assert (document["model_name"], document["model_version"]) == ("m", "3")
    assert document["id"] == "mine"
    said = document["parameters"]
    assert json.loads(said.pop("hops")) == [hop.as_json() for hop in HOPS]
    assert said == {"degraded": False, "weights": 0, "latency_us": 1000}
    assert np.array_equal(reply.tensors()["double"], DOUBLE)
    named = await plain.ask(
        "/v2/models/m/versions/3/infer", json.dumps({"inputs": [tensor()]}).encode()
    )
    assert named.code == 200


@pytest.mark.parametrize(
    ("all_binary", "each", "expected"),
    [
        (None, [None, None], []),
        (True, [None, None], ["double", "negative"]),
        (True, [False, None], ["negative"]),
        (None, [True, None], ["double"]),
        (False, [None, True], ["negative"]),
        (True, None, ["double", "negative"]),
    ],
)
async def test_each_output_comes_as_json_or_behind_it_as_its_client_wants(
    plain: Door, all_binary: bool | None, each: list[bool | None] | None, expected: list[str]
) -> None:
    document: dict[str, Any] = {"inputs": [tensor()]}
    if all_binary is not None:
        document["parameters"] = {"binary_data_output": all_binary}
    if each is not None:
        document["outputs"] = [
            {"name": name} | ({} if wants is None else {"parameters": {"binary_data": wants}})
            for name, wants in zip(["double", "negative"], each, strict=True)
        ]
    reply = await plain.infer(document)
    head = int(reply.headers.get("inference-header-content-length", len(reply.body)))
    behind = [o["name"] for o in json.loads(reply.body[:head])["outputs"] if "data" not in o]
    assert behind == expected
    assert np.array_equal(reply.tensors()["double"], DOUBLE)
    assert np.array_equal(reply.tensors()["negative"], -INPUT)


async def test_outputs_come_in_the_order_in_which_they_are_named_and_no_others(plain: Door) -> None:
    one = await plain.infer({"inputs": [tensor()], "outputs": [{"name": "negative"}]})
    assert list(one.tensors()) == ["negative"]
    both = [{"name": "negative"}, {"name": "double"}]
    swapped = await plain.infer({"inputs": [tensor()], "outputs": both})
    assert list(swapped.tensors()) == ["negative", "double"]


async def test_what_a_request_asks_for_reaches_the_mesh() -> None:
    seen: list[Request] = []

    async def answer(model: str, request: Request) -> Result:
        seen.append(request)
        return await doubled(model, request)

    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with door(answer) as opened:

        async def heard(headers: dict[str, str] | None = None, **parameters: Any) -> Request:
            document = {"inputs": [tensor()], "parameters": parameters}
            assert (await opened.infer(document, **(headers or {}))).code == 200
            return seen[-1]

        assert (await heard(timeout=1500)).budget == pytest.approx(0.0015)
        assert (await heard(timeout=0)).budget is None
        assert (await heard(budget_ms=20)).budget == pytest.approx(0.02)
        assert (await heard(weights=4)).weights == 4
        assert (await heard(priority=3)).budget is None
        assert (await heard({"swarm_session": "s1"})).session == "s1"
        assert (await heard({"traceparent": trace})).traceparent == trace
        assert (await heard(agent="somebody-else")).agent == "robot-7"
        assert (await heard({"content_type": "text/html"})).agent == "robot-7"


@pytest.mark.parametrize(
    ("document", "code", "text"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "a request is"),
        (b'{"inputs": [' + b"[" * 2000, 400, "not JSON"),
        ({"inputs": [tensor(), tensor()]}, 400, "comes twice"),
        ({"inputs": [tensor(datatype="BYTES")]}, 400, "datatype BYTES is not taken"),
        ({"inputs": [tensor(shape=[1, 5])]}, 400, "4 values where shape"),
        ({"inputs": [tensor(shape=[0, 2**31, 2**31])]}, 400, "values where shape"),
        ({"inputs": [tensor(data=["1", "2", "3", "4"])]}, 400, "data is no FP32"),
        ({"inputs": [tensor(name="y")]}, 400, "takes 'x', not 'y'"),
        ({"inputs": [tensor()], "outputs": [{"name": "w"}]}, 400, "has no output 'w': it has dou"),
        ({"inputs": [tensor()], "outputs": [{"name": "double"}] * 2}, 400, "comes twice"),
        ({"inputs": [tensor()], "outputs": {}}, 400, "outputs is a list"),
        (
            {"inputs": [tensor()],
             "outputs": [{"name": "double", "parameters": {"classification": 2}}]},
            501,
            "output 'double': classes",
        ),
        ({"inputs": [tensor()], "parameters": {"sequence_id": "a"}}, 501, "swarm-session"),
        ({"inputs": [tensor()], "parameters": {"timeout": -1}}, 400, "timeout"),
        ({"inputs": [tensor()], "parameters": {"timeout": True}}, 400, "timeout"),
        ({"inputs": [tensor()], "parameters": {"timeout": 10**18}}, 400, "at most 600 s"),
        ({"inputs": [tensor()], "parameters": {"priority": -1}}, 400, "priority"),
        ({"inputs": [tensor()], "parameters": {"binary_data_output": 1}}, 400, "true or false"),
        ({"inputs": [tensor()], "parameters": dict.fromkeys("abc" * 30) | {str(n): n for n in
          range(70)}}, 400, "at most 64"),
        (
            {"inputs": [tensor(parameters={"shared_memory_region": "r"})]},
            501,
            "input 'x': this gateway takes no shared memory",
        ),
        (
            {"inputs": [tensor(parameters={"binary_data_size": 16}, data=[1])]},
            400,
            "beside its bytes",
        ),
        ({"inputs": [tensor(parameters={"binary_data_size": 16})]}, 400, "of which the body has 0"),
        ({"inputs": [tensor(parameters={"binary_data_size": 15})]}, 400, "takes 16"),
    ],
)  # fmt: skip
async def test_a_request_that_cannot_be_answered_rightly_is_refused_by_name(
    document: Any, code: int, text: str
) -> None:
    async def answer(model: str, request: Request) -> Result:
        if request.budget is not None and request.budget > 600:
            return Result("", status=Status.INVALID_ARGUMENT, message="at most 600 s are given")
        return await doubled(model, request)

    async with door(answer) as opened:
        reply = await opened.infer(document)
        assert (reply.code, text in reply.error) == (code, True), reply.error
        client = opened.clients[-1]
        assert (await opened.ask("/v2/health/live", client=client)).code == 200


@pytest.mark.parametrize("length", ["-1", "x", "9" * 30, "100000"])
async def test_a_wrong_length_of_the_json_is_refused(plain: Door, length: str) -> None:
    body, _ = binary()
    reply = await plain.infer(body, Inference_Header_Content_Length=length)
    assert reply.code == 400
    assert "inference-header-content-length" in reply.error


async def test_bytes_that_belong_to_no_input_are_refused(plain: Door) -> None:
    body, header = binary()
    assert (await plain.infer(body, **header)).code == 200
    reply = await plain.infer(body + b"xyz", **header)
    assert (reply.code, "3 bytes" in reply.error) == (400, True)


@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("gzip", gzip.compress),
        (
            "gzip",
            lambda data: gzip.compress(data[:99]) + gzip.compress(b"") + gzip.compress(data[99:]),
        ),
        ("deflate", zlib.compress),
        ("deflate", lambda data: zlib.compress(data, wbits=-15)),
        ("identity", bytes),
    ],
)
async def test_a_body_comes_packed(plain: Door, encoding: str, pack: Any) -> None:
    large = np.arange(400_000, dtype=np.float32).reshape(-1, 4)  # unpacked in pieces
    for array in (INPUT, large):
        body, header = binary(array, parameters={"binary_data_output": True})
        reply = await plain.infer(pack(body), Content_Encoding=encoding, **header)
        assert np.array_equal(reply.tensors()["double"], 2 * array)


@pytest.mark.parametrize(
    ("body", "encoding", "code", "text"),
    [
        (bomb(80), "gzip", 413, "once it is unpacked"),
        (bomb(3), "gzip", 400, "not JSON"),
        (b"words", "gzip", 400, "not gzip"),
        (b"words", "deflate", 400, "not deflate"),
        (gzip.compress(b"{}", mtime=0)[:-4], "gzip", 400, "cut off"),
        (gzip.compress(b"{}", mtime=0) + b"more", "gzip", 400, "followed by more"),
        (zlib.compress(b"{}") * 2, "deflate", 400, "followed by more"),
        (gzip.compress(b"{}", mtime=0) * 300, "gzip", 400, "followed by more"),
        (bomb(40) + bomb(40), "gzip", 413, "once it is unpacked"),
        (b"{}", "br", 415, "there are gzip and deflate"),
        (b"", "gzip", 400, "cut off"),
    ],
)
async def test_a_packed_body_that_is_a_bomb_or_broken_is_refused(
    plain: Door, body: bytes, encoding: str, code: int, text: str
) -> None:
    reply = await plain.infer(body, Content_Encoding=encoding)
    assert (reply.code, text in reply.error) == (code, True), reply.error


async def test_answers_are_packed_only_where_the_gateway_and_the_client_want_it() -> None:
    rows = np.ones((500, 4), np.float32)
    document = {"inputs": [tensor(rows)]}
    async with door() as opened:
        plain = await opened.infer(document, Accept_Encoding="gzip")
        assert "content-encoding" not in plain.headers
    async with door(compress=True) as opened:
        for accept, encoding in (("br, gzip;q=0.5", "gzip"), ("deflate", "deflate")):
            packed = await opened.infer(document, Accept_Encoding=accept)
            assert packed.headers["content-encoding"] == encoding
            assert zlib.decompress(packed.body, 47)[:10] == plain.body[:10]
        for accept in ("br", "gzip;q=0"):
            same = await opened.infer(document, Accept_Encoding=accept)
            assert "content-encoding" not in same.headers


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status.INVALID_ARGUMENT, 400),
        (Status.UNAUTHENTICATED, 401),
        (Status.PERMISSION_DENIED, 403),
        (Status.NOT_FOUND, 404),
        (Status.DEADLINE_EXCEEDED, 504),
        (Status.UNAVAILABLE, 503),
        (Status.INTERNAL, 500),
    ],
)
async def test_how_a_request_ended_is_the_answers_code(status: Status, code: int) -> None:
    async def answer(model: str, request: Request) -> Result:
        return Result("", model, status=status, message="the reason", stage=2, node="n2")

    async with door(answer) as opened:
        reply = await opened.infer({"inputs": [tensor()]})
        assert (reply.code, reply.error) == (code, "the reason (stage 2, node n2)")
        assert "retry-after" not in reply.headers


@pytest.mark.parametrize(("option", "code"), [({}, 429), ({"full_is_503": True}, 503)])
async def test_full_says_when_to_come_back(option: dict[str, bool], code: int) -> None:
    async def answer(model: str, request: Request) -> Result:
        return Result("", status=Status.RESOURCE_EXHAUSTED, message="full", retry_after=1.2001)

    async with door(answer, **option) as opened:
        reply = await opened.infer({"inputs": [tensor()]})
        told = reply.headers["retry-after"], reply.headers["retry-after-ms"]
        assert (reply.code, told) == (code, ("2", "1201"))
    async with door(most_in_flight=0) as opened:
        assert (await opened.infer({"inputs": [tensor()]})).headers["retry-after"] == "1"


async def test_who_may_not_ask_is_told_so_and_health_needs_no_key() -> None:
    async with door() as opened:
        for refusal, code in (
            (Unauthenticated("no key"), 401),
            (PermissionDenied("not this one"), 403),
            (ResourceExhausted("quota", math.inf), 429),
        ):
            opened.callers.refusal = refusal
            for path in ("/v2", "/v2/models/m", "/v2/models/m/infer", "/v2/absent"):
                assert (await opened.ask(path)).code == code
            assert (await opened.ask("/v2/health/ready")).code == 200


async def test_readiness_follows_the_mesh() -> None:
    async with door() as opened:
        assert (await opened.ask("/v2/health/ready")).code == 200
        opened.models.connected = False
        assert (await opened.ask("/v2/health/ready")).code == 503
        assert (await opened.ask("/v2/health/live")).code == 200


async def test_models_are_described_as_tools_that_measure_read_them() -> None:
    async with door(server_name="triton") as opened:
        assert (await opened.ask("/v2")).document["name"] == "triton"
        metadata = (await opened.ask("/v2/models/m")).document
        assert [output["name"] for output in metadata["outputs"]] == ["double", "negative"]
        config = (await opened.ask("/v2/models/m/versions/3/config")).document
        assert (config["max_batch_size"], config["input"][0]["dims"]) == (0, [-1, 4])
        nothing = (await opened.ask("/v2/models/m/stats")).document["model_stats"]
        assert nothing[0]["inference_stats"]["success"] == {"count": 0, "ns": 0}
        await opened.infer({"inputs": [tensor()]})
        [counted] = (await opened.ask("/v2/models/stats")).document["model_stats"]
        assert counted["inference_stats"]["queue"] == {"count": 1, "ns": 2000}
        index = (await opened.ask("/v2/repository/index", b"")).document
        assert [(each["name"], each["state"]) for each in index] == [
            ("m", "READY"),
            ("n", "UNAVAILABLE"),
        ]
        ready = (await opened.ask("/v2/repository/index", b'{"ready": true}')).document
        assert [each["name"] for each in ready] == ["m"]


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/v2/models/m/infer", 405),
        ("POST", "/v2", 405),
        ("POST", "/v2/models/m", 405),
        ("GET", "/v2/models/absent", 404),
        ("GET", "/v2/models/absent/ready", 404),
        ("GET", "/v2/models/m/versions/4", 404),
        ("GET", "/v2/models/m/other", 404),
        ("GET", "/v2/health", 404),
        ("GET", "/v3", 404),
        ("GET", "/v2/%00/%ff", 404),
        ("HEAD", "/v2/models/m", 200),
        ("POST", "/v2/repository/models/m/load", 501),
        ("POST", "/v2/models/m/generate", 501),
        ("POST", "/v2/cudasharedmemory/region/r/register", 501),
        ("GET", "/v2/systemsharedmemory/status", 501),
        ("GET", "/v2/models/m/trace/setting", 501),
    ],
)
async def test_each_path_has_its_code(plain: Door, method: str, path: str, code: int) -> None:
    client = await plain.connect()
    body = b"{}" if method == "POST" else None
    client.send(message(path, body, method) + message("/v2/health/live"))
    first = (await client.reader.readuntil(b"\r\n\r\n")).decode()
    assert int(first.split()[1]) == code


class Memory:
    """`Regions` that hold one tensor, and note what is written."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[str, int, int]] = {}
        self.written: dict[Region, np.ndarray] = {}

    def register(self, name: str, key: str, offset: int, size: int) -> None:
        self.known[name] = key, offset, size

    def unregister(self, name: str) -> None:
        self.known.pop(name)

    def registered(self, name: str = "") -> dict[str, tuple[str, int, int]]:
        return self.known

    def read(self, region: Region, datatype: str, shape: tuple[int, ...]) -> np.ndarray:
        assert (region, datatype, shape) == (Region("r", 64, 16), "FP32", (1, 4))
        return INPUT

    def write(self, region: Region, array: np.ndarray) -> None:
        self.written[region] = array


async def test_tensors_come_and_go_by_shared_memory_where_that_is_allowed() -> None:
    memory = Memory()
    at = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    document = {
        "inputs": [tensor(parameters=at | {"shared_memory_offset": 64})],
        "outputs": [{"name": "double", "parameters": at}, {"name": "negative"}],
    }
    async with door(regions=memory) as opened:
        body = b'{"key": "/k", "offset": 0, "byte_size": 128}'
        path = "/v2/systemsharedmemory/region/r/register"
        assert (await opened.ask(path, body)).code == 200
        status = (await opened.ask("/v2/systemsharedmemory/status")).document
        assert status == [{"name": "r", "key": "/k", "offset": 0, "byte_size": 128}]
        outputs = (await opened.infer(document)).document["outputs"]
        assert outputs[0]["parameters"] == at
        assert outputs[1]["data"] == [-1, -2, -3, -4]
        assert np.array_equal(memory.written[Region("r", 0, 16)], DOUBLE)
        path = "/v2/systemsharedmemory/region/r/unregister"
        assert (await opened.ask(path, b"")).code == 200
        assert memory.known == {}
        assert "system_shared_memory" in (await opened.ask("/v2")).document["extensions"]


@pytest.mark.parametrize("body", [b"{}", b"", b"no JSON", b'{"inputs": 1}'])
async def test_an_unknown_model_is_unknown_whatever_it_is_asked(plain: Door, body: bytes) -> None:
    for path in ("/v2/models/absent/infer", "/v2/models/m/versions/9/infer"):
        assert (await plain.ask(path, body)).code == 404
    assert (await plain.ask("/v2/models/m/infer", body)).code == 400


async def test_an_answer_names_the_parameters_that_mean_nothing(plain: Door) -> None:
    known = {"timeout": 1_000_000, "session": "s"}
    quiet = await plain.infer({"inputs": [tensor()], "parameters": known})
    assert "ignored" not in quiet.document["parameters"]
    outputs = [{"name": "double", "parameters": {"binari": True}}]
    loud = await plain.infer(
        {"inputs": [tensor()], "outputs": outputs, "parameters": {**known, "budget": 3}}
    )
    assert loud.document["parameters"]["ignored"] == "binari, budget"


async def test_an_output_in_json_says_how_many_of_its_values_json_cannot_say() -> None:
    async def odd(model: str, request: Request) -> Result:
        values = np.array([[1, math.nan, math.inf, -math.inf]], np.float32)
        return Result("id", "m", "3", outputs={"double": values, "negative": INPUT})

    async with door(odd) as opened:
        document = (await opened.infer({"inputs": [tensor()]})).document
        double, negative = document["outputs"]
        assert double["data"] == [1, None, None, None]
        assert double["parameters"] == {"not_finite": 3}
        assert "parameters" not in negative
        wanted = {"inputs": [tensor()], "parameters": {"binary_data_output": True}}
        exact = (await opened.infer(wanted)).tensors()["double"]
        assert np.array_equal(exact, [[1, math.nan, math.inf, -math.inf]], equal_nan=True)
