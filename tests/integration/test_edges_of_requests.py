"""What pages say of an input without rows, and of `someone` and `where`."""

from __future__ import annotations

import json

import numpy as np
import pytest
from nats.aio.client import Client
from support.meshes import good_request
from support.waiting import GENEROUS

import swarm
from nodes.up.mesh import LocalMesh
from swarm.wire.messages import Request, Result

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

ROOT = "swarm.default"
NO_ROWS = {"image": np.zeros((0, 1, 8, 8), np.float32)}


async def test_an_input_without_rows_is_refused_at_once_by_every_door(
    digits_mesh: LocalMesh, nats_client: Client
) -> None:
    for delivery in ("durable", "fast"):
        with pytest.raises(swarm.InvalidArgument, match="empty"):
            await digits_mesh.mesh.infer("digits", NO_ROWS, 30.0, delivery=delivery)
    body = {"inputs": [{"name": "image", "shape": [0, 1, 8, 8], "datatype": "FP32", "data": []}]}
    said = json.loads(
        (
            await nats_client.request(f"{ROOT}.infer.digits", json.dumps(body).encode(), GENEROUS)
        ).data
    )
    assert (said["status"], "empty" in said["error"]) == ("INVALID_ARGUMENT", True)
    packed = b"".join(Request(NO_ROWS).parts())
    answer = (await nats_client.request(f"{ROOT}.infer.digits", packed, GENEROUS)).data
    assert Result.decode(answer).status is swarm.Status.INVALID_ARGUMENT
    await good_request(digits_mesh.mesh)


async def test_someone_is_one_living_node_and_where_is_refused_by_the_servers_stream(
    digits_mesh: LocalMesh, nats_client: Client
) -> None:
    nodes = {
        status["node"]
        for status in map(digits_mesh.status_of, digits_mesh.supervisor.nodes)
        if status
    }
    for _ in range(5):
        about = (await nats_client.request(f"{ROOT}.someone", b"", GENEROUS)).data
        text = about.decode()
        node = json.loads(text)["metadata"]["node"]
        assert node in nodes, text
    asks = {"Nats-Expected-Stream": "-"}
    for stage in (1, 2, 3):
        subject = f"{ROOT}.features.digits.1.{stage}.where"
        found = json.loads((await nats_client.request(subject, b"", GENEROUS, headers=asks)).data)
        assert f"SWARM=default=digits=1=stage{stage}" in json.dumps(found), found
        assert "error" in found
