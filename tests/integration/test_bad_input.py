"""A bad message is answered with its fault, and the next request is served."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import msgpack
import numpy as np
import pytest
from nats.aio.client import Client
from support.meshes import add_model, digits, dismiss, emptied, good_request
from support.waiting import GENEROUS, eventually
from zoo.builders import transformer_encoder

import swarm
from nodes.up.mesh import LocalMesh
from shards.split.split import split
from swarm.wire.messages import Features, Request, Result

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

SUBJECT = "swarm.default.infer.digits"


def tensor(**changes: Any) -> dict[str, Any]:
    """A good FP32 [1, 1, 8, 8] input in the wire's own form, with some of it changed."""
    good = {"datatype": "FP32", "shape": [1, 1, 8, 8], "codec": "raw", "data": bytes(256)}
    return good | changes


def packed(name: str = "image", budget_us: Any = 2_000_000, **changes: Any) -> bytes:
    doc = {"v": 1, "budget_us": budget_us, "tensors": {name: tensor(**changes)}}
    return bytes(msgpack.packb(doc))


def as_json(parameters: dict[str, Any] | None = None, **changes: Any) -> bytes:
    good = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.0] * 64}
    doc: dict[str, Any] = {"inputs": [good | changes]}
    if parameters is not None:
        doc["parameters"] = parameters
    return json.dumps(doc).encode()


# One of each kind: tests/swarm/wire has all that a parser refuses.
WRONG: dict[str, tuple[bytes, str]] = {
    "msgpack-wrong-name": (packed(name="picture"), "INVALID_ARGUMENT"),
    "msgpack-wrong-shape": (packed(shape=[1, 1, 4, 16]), "INVALID_ARGUMENT"),
    "msgpack-empty-batch": (packed(shape=[0, 1, 8, 8], data=b""), "INVALID_ARGUMENT"),
    "msgpack-wrong-datatype": (packed(datatype="INT32"), "INVALID_ARGUMENT"),
    "msgpack-shared-memory": (packed(codec="shm", data="claim"), "INVALID_ARGUMENT"),
    "msgpack-truncated": (packed()[:-100], "INVALID_ARGUMENT"),
    "msgpack-huge-shape": (packed(shape=[2**31, 2**31, 2**31]), "INVALID_ARGUMENT"),
    "msgpack-budget-0": (packed(budget_us=0), "DEADLINE_EXCEEDED"),
    "msgpack-budget-huge": (packed(budget_us=2**63), "INVALID_ARGUMENT"),
    "json-wrong-name": (as_json(name="picture"), "INVALID_ARGUMENT"),
    "json-wrong-shape": (as_json(shape=[1, 1, 4, 16]), "INVALID_ARGUMENT"),
    "json-text-as-data": (as_json(data=["x"] * 64), "INVALID_ARGUMENT"),
    "json-truncated": (as_json()[:-40], "INVALID_ARGUMENT"),
    "json-budget-0": (as_json({"budget_ms": 0}), "DEADLINE_EXCEEDED"),
    "json-unknown-version": (as_json({"version": "99"}), "NOT_FOUND"),
    "msgpack-unknown-version": (
        bytes(msgpack.packb({"v": 1, "version": "99", "tensors": {"image": tensor()}})),
        "NOT_FOUND",
    ),
    "json-version-as-a-subject": (as_json({"version": "1.>"}), "INVALID_ARGUMENT|NOT_FOUND"),
    "empty": (b"", "INVALID_ARGUMENT"),
}


async def answer_of(client: Client, body: bytes, subject: str = SUBJECT) -> tuple[str, str]:
    """(status, message) of a reply in JSON or MessagePack."""
    reply = await client.request(subject, body, timeout=GENEROUS)
    assert reply.headers is not None, "a refusal carries the service's error headers"
    assert reply.headers["Nats-Service-Error"]
    code = int(reply.headers["Nats-Service-Error-Code"])
    assert 400 <= code < 600
    if reply.data[:1] == b"{":
        doc = json.loads(reply.data)
        return doc["status"], doc["error"]
    result = Result.decode(reply.data)
    return str(result.status), result.message


@pytest.mark.parametrize("case", WRONG)
async def test_a_wrong_request_gets_its_status_and_the_next_is_served(
    digits_mesh: LocalMesh, nats_client: Client, case: str
) -> None:
    body, expected = WRONG[case]
    status, message = await answer_of(nats_client, body)
    assert status in expected.split("|"), message
    assert len(message) > 10
    await good_request(digits_mesh.mesh)


async def test_a_good_request_in_either_encoding_is_served(nats_client: Client) -> None:
    """A good request; each wrong one differs from it in its one fault."""
    for body in (as_json(), packed(), packed(shape=[2, 1, 8, 8], data=bytes(512))):
        reply = await nats_client.request(SUBJECT, body, timeout=GENEROUS)
        assert not reply.headers or "Nats-Service-Error" not in reply.headers
    doc = json.loads((await nats_client.request(SUBJECT, as_json(), timeout=GENEROUS)).data)
    assert doc["outputs"][0]["name"] == "logits"
    assert doc["outputs"][0]["shape"] == [1, 10]


async def test_an_unknown_model_is_not_found_through_a_gateway(
    digits_mesh: LocalMesh, nats_client: Client
) -> None:
    for body in (packed(), as_json()):
        status, message = await answer_of(nats_client, body, "swarm.default.infer.nonsense")
        assert status == "NOT_FOUND"
        assert "nonsense" in message
    await good_request(digits_mesh.mesh)


@pytest.mark.parametrize(
    ("model", "inputs", "budget", "error"),
    [
        ("nonsense", {"image": np.zeros((1, 1, 8, 8), np.float32)}, 30.0, swarm.NotFound),
        ("digits@99", {"image": np.zeros((1, 1, 8, 8), np.float32)}, 30.0, swarm.NotFound),
        ("digits", {"picture": np.zeros((1, 1, 8, 8), np.float32)}, 30.0, swarm.InvalidArgument),
        ("digits", {}, 30.0, swarm.InvalidArgument),
        ("digits", {"image": np.zeros((1, 8, 8), np.float32)}, 30.0, swarm.InvalidArgument),
        ("digits", {"image": np.zeros((1, 1, 8, 8), np.int64)}, 30.0, swarm.InvalidArgument),
        ("digits", {"image": np.zeros((1, 1, 8, 8), complex)}, 30.0, swarm.InvalidArgument),
        ("digits", {"image": np.zeros((1, 1, 8, 8), np.float32)}, 0.0, swarm.DeadlineExceeded),
        ("digits", {"image": np.zeros((1, 1, 8, 8), np.float32)}, -1.0, swarm.DeadlineExceeded),
        ("digits", {"image": np.zeros((1, 1, 8, 8), np.float32)}, 1e9, swarm.InvalidArgument),
        ("digits", {"image": np.zeros((1, 1, 8, 8), np.float32)}, np.nan, swarm.InvalidArgument),
        ("digits", {"image": np.zeros((1, 1, 8, 8), np.float32)}, np.inf, swarm.InvalidArgument),
        ("di.gits", {"image": np.zeros((1, 1, 8, 8), np.float32)}, 30.0, swarm.InvalidArgument),
        ("", {"image": np.zeros((1, 1, 8, 8), np.float32)}, 30.0, swarm.InvalidArgument),
    ],
)
@pytest.mark.parametrize("known", [True, False], ids=["looked-up", "fresh"])
async def test_a_wrong_call_raises_its_typed_error(
    digits_mesh: LocalMesh,
    model: str,
    inputs: dict[str, np.ndarray],
    budget: float,
    error: type[swarm.SwarmError],
    known: bool,
) -> None:
    """A client that has looked the model up before and one that has not get this one answer."""
    async with swarm.connect(digits_mesh.url) as mesh:
        if known:
            await mesh.model("digits")
        with pytest.raises(error):
            await mesh.infer(model, inputs, budget)
        await good_request(mesh)


# --- straight into a lane ---------------------------------------------------------------

LANE = "swarm.default.features.digits.1.{stage}.any"


def features(**changes: Any) -> Features:
    """Good features for stage 1, with some of it changed."""
    good: dict[str, Any] = {
        "id": f"by-hand-{time.monotonic_ns()}",
        "model": "digits",
        "version": "1",
        "stage": 1,
        "reply": "nobody.waits",
        "budget_us": 2_000_000,
        "tensors": {"image": np.zeros((1, 1, 8, 8), np.float32)},
    }
    return Features(**(good | changes))


@pytest.mark.parametrize("stage", [1, 2, 3])
async def test_garbage_in_a_lane_is_dead_lettered_and_the_node_survives(
    digits_mesh: LocalMesh, nats_client: Client, stage: int
) -> None:
    before = {node: status["pid"] for node, status in digits_mesh.statuses.items()}
    stream = nats_client.jetstream()
    first = (await stream.stream_info("SWARM=default=dead")).state.messages
    bodies = [b"", b"\xff\xfe garbage", bytes(2000), packed()]
    hop = {"stage": 0, "node": "n", "queue_us": 1, "compute_us": 1, "batch": 1}
    for hops in ([None], [hop | {"queue_us": "y"}], [hop | {"compute_us": None}]):
        parts = features(stage=stage, hops=hops, budget_us=0).parts()
        bodies.append(b"".join(bytes(part) for part in parts))
    for body in bodies:
        await stream.publish(LANE.format(stage=stage), body)

    async def buried() -> int:
        return (await stream.stream_info("SWARM=default=dead")).state.messages - first

    async def all_are() -> bool:
        return await buried() >= len(bodies)

    await eventually(all_are, "all are buried")
    last = await stream.get_last_msg("SWARM=default=dead", "swarm.default.dead.digits")
    assert last.data in bodies
    assert last.headers is not None
    assert last.headers["Swarm-Stage"] == str(stage)
    assert "undecodable" in last.headers["Swarm-Reason"]
    await good_request(digits_mesh.mesh)
    await emptied(digits_mesh)  # so no message can come a second time
    assert await buried() == len(bodies), "each is buried once"
    alive = {s["node"] for s in digits_mesh.statuses.values() if s["state"] == "ready"}
    assert {n for n, pid in before.items() if digits_mesh.statuses[n]["pid"] == pid} >= alive
    assert all(node.alive and not node.restarts for node in digits_mesh.supervisor.nodes)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"tensors": {"other": np.zeros((1, 1, 8, 8), np.float32)}}, "INVALID_ARGUMENT"),
        ({"tensors": {"image": np.zeros((1, 1, 9, 8), np.float32)}}, "INVALID_ARGUMENT"),
        ({"tensors": {"image": np.zeros((1, 1, 8, 8), np.float64)}}, "INVALID_ARGUMENT"),
        ({"model": "another"}, "INVALID_ARGUMENT"),
        ({"version": "7"}, "INVALID_ARGUMENT"),
        ({"stage": 2}, "INVALID_ARGUMENT"),
        ({"budget_us": 0}, "DEADLINE_EXCEEDED"),
        ({"budget_us": -(2**50)}, "DEADLINE_EXCEEDED"),
    ],
    ids=lambda value: str(list(value))[:40] if isinstance(value, dict) else None,
)
async def test_wrong_features_are_answered_with_their_status(
    digits_mesh: LocalMesh, nats_client: Client, changes: dict[str, Any], status: str
) -> None:
    """Well-formed messages that make no sense: their sender is told, the node goes on."""
    inbox = nats_client.new_inbox()
    replies = await nats_client.subscribe(inbox)
    body = b"".join(bytes(part) for part in features(reply=inbox, **changes).parts())
    await nats_client.jetstream().publish(LANE.format(stage=1), body)
    answer = Result.decode((await replies.next_msg(GENEROUS)).data)
    assert answer.status == status, answer.message
    assert answer.node
    await replies.unsubscribe()
    await good_request(digits_mesh.mesh)


async def test_features_for_which_every_run_fails_answer_internal(digits_mesh: LocalMesh) -> None:
    """A word outside the vocabulary passes every check of form, and no runtime can look it up."""
    model = transformer_encoder(layers=1, d_model=16, heads=2, seq=8, vocabulary=50)
    result = split(model, name="words", stages=2, bandwidth=1e6, profile=False)
    mask = np.ones((1, 8), np.int64)
    good = {"tokens": np.full((1, 8), 3, np.int64), "attention_mask": mask}
    bad = {"tokens": np.full((1, 8), 10_000, np.int64), "attention_mask": mask}
    nodes = await add_model(digits_mesh, result, "shard-1", "shard-2")
    try:
        with pytest.raises(swarm.Internal):  # known at once, not by the end of the budget
            await digits_mesh.mesh.infer("words", bad, 60.0)
        # Poison in company: the others are served.
        answers = await asyncio.gather(
            *(
                digits_mesh.mesh.ask("words", bad if n % 4 == 0 else good, GENEROUS)
                for n in range(20)
            )
        )
        for number, answer in enumerate(answers):
            expected = swarm.Status.INTERNAL if number % 4 == 0 else swarm.Status.OK
            assert answer.status is expected, answer.message
    finally:
        await dismiss(digits_mesh, nodes)


@pytest.mark.parametrize("name", ["fine-id_1", "a.>", "x y", "ünïcode", "n" * 128])
async def test_a_requests_own_id_comes_back_whatever_it_holds_and_may_be_used_again(
    nats_client: Client, name: str
) -> None:
    """It names no subject and deduplicates nothing: clients reuse ids."""
    images, _ = digits()
    body = b"".join(bytes(part) for part in Request({"image": images[:1]}, id=name).parts())
    for _ in range(2):
        reply = Result.decode((await nats_client.request(SUBJECT, body, timeout=GENEROUS)).data)
        assert (reply.status, reply.id) == ("OK", name)
