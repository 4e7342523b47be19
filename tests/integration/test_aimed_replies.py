"""What a stranger asks with a reply subject of the mesh is answered nowhere: the answer would be an
order, a document or a call to whoever listens there."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from support.meshes import good_request
from support.waiting import GENEROUS, eventually

from nodes.up.mesh import LocalMesh
from swarm.wire.messages import Features, Request

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

ROOT = "swarm.default"
IMAGE = {"image": np.zeros((1, 1, 8, 8), np.float32)}
IN_JSON = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.0] * 64}

# Subjects that mean something to somebody, beside those that only look so.
AIMS = {
    "a status": f"{ROOT}.status.aimed-1",
    "the end of a request": f"{ROOT}.cancel.digits.1",
    "a change of a model": f"{ROOT}.config.serve.digits",
    "a lane": f"{ROOT}.features.digits.1.1.any",
    "another mesh": "swarm.other.events.aimed",
    "an ack": "$JS.ACK.aimed.aimed.1.1.1.1.1",
    "a key": "$KV.swarm-default-config.aimed.digits",
    "a call of JetStream": "$JS.API.aimed",
    "the server": "$SYS.REQ.aimed",
    "service discovery": "$SRV.aimed",
}


def features(reply: str, stage: int = 1, request_id: str = "aimed") -> bytes:
    made = Features(request_id, "digits", "1", stage, reply, 2_000_000, IMAGE)
    return b"".join(made.parts())


def wrong_features(reply: str) -> bytes:
    """Which the stage would answer with a failure."""
    made = Features(
        "aimed", "digits", "1", 1, reply, 2_000_000, {"x": np.zeros((1, 4), np.float32)}
    )
    return b"".join(made.parts())


async def ask_by(client: Client, door: str, aim: str) -> None:
    """Send what that door answers, with this subject for the answer."""
    infer, lane, fast = (
        f"{ROOT}.infer.digits",
        f"{ROOT}.features.digits.1",
        f"{ROOT}.fresh.digits.1",
    )
    in_json = json.dumps({"inputs": [IN_JSON]}).encode()
    match door:
        case "a lane":
            await client.publish(f"{lane}.1.any", features(aim))
        case "a lane, wrong":
            await client.publish(f"{lane}.1.any", wrong_features(aim))
        case "a lane, no budget":
            spent = Features("aimed", "digits", "1", 1, aim, 0, IMAGE)
            await client.publish(f"{lane}.1.any", b"".join(spent.parts()))
        case "the last lane":
            await client.publish(f"{lane}.3.any", features(aim, 3))
        case "fast mode":
            await client.publish(f"{fast}.1", features(aim, request_id=f"aimed-{aim}"))
        case "infer, JSON":
            await client.publish(infer, in_json, reply=aim)
        case "infer, MessagePack":
            await client.publish(infer, b"".join(Request(IMAGE).parts()), reply=aim)
        case "infer, wrong":
            await client.publish(infer, b"?", reply=aim)
        case "infer, unknown":
            await client.publish(f"{ROOT}.infer.nonsense", in_json, reply=aim)
        case "discovery":
            for verb in ("PING", "INFO", "STATS"):
                await client.publish(f"$SRV.{verb}", b"", reply=aim)
        case "the fleet":
            await client.publish(f"{ROOT}.fleet", b"", reply=aim)
        case "who is there":
            await client.publish(f"{ROOT}.someone", b"", reply=aim)
        case _:
            raise AssertionError(door)


DOORS = (
    "a lane",
    "a lane, wrong",
    "a lane, no budget",
    "the last lane",
    "fast mode",
    "infer, JSON",
    "infer, MessagePack",
    "infer, wrong",
    "infer, unknown",
    "discovery",
    "the fleet",
    "who is there",
)


@pytest.mark.parametrize("door", DOORS)
async def test_no_door_answers_on_a_subject_that_is_no_inbox(
    digits_mesh: LocalMesh, nats_client: Client, door: str
) -> None:
    heard: list[tuple[str, bytes]] = []

    async def hear(message: Msg) -> None:
        heard.append((message.subject, message.data))

    listening = [await nats_client.subscribe(aim, cb=hear) for aim in AIMS.values()]
    inbox = nats_client.new_inbox()
    answers: list[Msg] = []

    async def answered(message: Msg) -> None:
        answers.append(message)

    listening.append(await nats_client.subscribe(inbox, cb=answered))
    await nats_client.flush()
    for aim in AIMS.values():
        await ask_by(nats_client, door, aim)
    # What was sent behind them by the same door is answered: they have been looked at before.
    for number in range(3):
        match door:
            case "a lane" | "a lane, wrong" | "a lane, no budget" | "the last lane" | "fast mode":
                behind = features(inbox, request_id=f"behind-{door.replace(' ', '-')}-{number}")
                subject = "fresh.digits.1.1" if door == "fast mode" else "features.digits.1.1.any"
                await nats_client.publish(f"{ROOT}.{subject}", behind)
            case _:
                await ask_by(nats_client, door, inbox)
        await eventually(lambda count=number: len(answers) > count, "an answer", GENEROUS)
    await good_request(digits_mesh.mesh)
    await nats_client.flush()
    # The test's own messages, and those of good requests, are no answers.
    others = {AIMS["a lane"], AIMS["the end of a request"]}
    answers_to = (b"\xa6status", b'"status"')  # MessagePack, JSON
    told = [
        each for each in heard if each[0] not in others or any(w in each[1] for w in answers_to)
    ]
    assert told == []
    for each in listening:
        await each.unsubscribe()


async def test_answers_to_inboxes_of_any_form_are_given(nats_client: Client) -> None:
    """Clients make inboxes as they like."""
    for inbox in ("_INBOX.x", "_R.abc.def", "my.app.replies.7", "swarmed.x", "reply"):
        answered: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

        async def on_answer(message: Msg, answered: asyncio.Future[Msg] = answered) -> None:
            if not answered.done():
                answered.set_result(message)

        listening = await nats_client.subscribe(inbox, cb=on_answer)
        await ask_by(nats_client, "infer, JSON", inbox)
        async with asyncio.timeout(GENEROUS):
            assert b"logits" in (await answered).data
        await listening.unsubscribe()
