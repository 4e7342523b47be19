"""Priorities in a mesh of real nodes: every door takes them, and high ones pass those that wait."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.commands import said
from support.gateways import address, ask, gateway_of
from support.meshes import LOOPBACK, mesh_of, split_digits
from support.waiting import eventually
from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException
from zoo.builders import mobilenet

import swarm
from nodes.up.mesh import LocalMesh
from shards.split.split import split
from swarm.errors import InvalidArgument, Status
from swarm.wire.hops import PRIORITIES

pytestmark = [pytest.mark.integration, pytest.mark.processes]

IMAGE = np.zeros((1, 1, 8, 8), np.float32)
BODY = {
    "inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.0] * 64}]
}
REFUSED = "it is low, normal or high"


def answers(local: LocalMesh) -> dict[str, int]:
    """By priority, of all nodes that answer requests."""
    counts: dict[str, int] = {}
    for node in local.supervisor.nodes:
        told = ((local.status_of(node) or {}).get("requests") or {}).get("by_priority") or {}
        for priority, count in told.items():
            counts[priority] = counts.get(priority, 0) + count
    return counts


def over_grpc(where: str, priority: int = 0, **headers: str) -> None:
    with triton.InferenceServerClient(where) as client:
        image = triton.InferInput("image", IMAGE.shape, "FP32")
        image.set_data_from_numpy(IMAGE)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        client.infer("digits", [image], priority=priority, headers=named)


async def test_every_door_takes_a_priority_and_refuses_what_is_none() -> None:
    async with mesh_of(split_digits(stages=1), "shard-1") as local:
        gateway = await gateway_of(local, "--http", "0", "--grpc", "0")
        url = f"{address(local, gateway)}/v2/models/digits/infer"
        over_http = partial(asyncio.to_thread, ask, url)

        assert (await over_http(BODY | {"parameters": {"priority": "high"}}))[0] == 200
        assert (await over_http(BODY, swarm_priority="low"))[0] == 200
        assert (await over_http(BODY | {"parameters": {"priority": 2}}))[0] == 200
        for refused in (
            await over_http(BODY | {"parameters": {"priority": "soon"}}),
            await over_http(BODY, swarm_priority="soon"),
        ):
            assert refused[0] == 400
            assert REFUSED in refused[2]["error"]

        door = address(local, gateway, "grpc")
        await asyncio.to_thread(over_grpc, door, 1)
        with pytest.raises(InferenceServerException, match=REFUSED):
            await asyncio.to_thread(over_grpc, door, swarm_priority="soon")

        link, subject = local.mesh.link, local.mesh.subjects.infer("digits")
        for parameters, headers in (
            ({"priority": "high"}, b""),
            ({}, b"NATS/1.0\r\nSwarm-Priority: low\r\n\r\n"),
        ):
            data = json.dumps(BODY | {"parameters": parameters}).encode()
            answer = json.loads((await link.request(subject, data, headers=headers)).data)
            assert "outputs" in answer, answer
            assert "ignored" not in answer["parameters"]
        bad = json.dumps(BODY | {"parameters": {"priority": "soon"}}).encode()
        answer = json.loads((await link.request(subject, bad)).data)
        assert (answer["status"], REFUSED in answer["error"]) == ("INVALID_ARGUMENT", True)
        expected = {"high": 3, "low": 2, "normal": 1}
        await eventually(lambda: answers(local) == expected, "they are counted by priority")

        result = await local.mesh.infer("digits", {"image": IMAGE}, priority="high")
        assert result.hops[0].extra[PRIORITIES] is True
        with pytest.raises(InvalidArgument, match=REFUSED):
            await local.mesh.infer("digits", {"image": IMAGE}, priority="soon")
        command = ("infer", "digits", "--random", "--nats", local.url, "--mesh", local.name)
        done = await asyncio.to_thread(said, *command, "--priority", "low", "--json")
        assert json.loads(done.stdout)["hops"][0][PRIORITIES] is True
        done = await asyncio.to_thread(said, *command, "--priority", "soon")
        assert done.code != 0
        assert REFUSED in done.stderr


async def test_a_node_bounds_the_priority_of_plain_nats_clients() -> None:
    bound = ("--nats-priority", "normal")
    async with mesh_of(split_digits(stages=1), "shard-1", flags=bound) as local:
        link, subject = local.mesh.link, local.mesh.subjects.infer("digits")
        for priority, refused in (("high", True), ("normal", False), ("low", False), ("", False)):
            in_body = json.dumps(BODY | {"parameters": {"priority": priority}}).encode()
            in_header = f"NATS/1.0\r\nswarm-priority: {priority}\r\n\r\n".encode()
            for data, headers in ((in_body, b""), (json.dumps(BODY).encode(), in_header)):
                answer = json.loads((await link.request(subject, data, headers=headers)).data)
                assert answer.get("status") == ("PERMISSION_DENIED" if refused else None), answer


@pytest.mark.parametrize("shm", [True, False], ids=["handed over", "by lanes"])
async def test_high_requests_pass_those_of_all_requesters_that_wait(shm: bool) -> None:
    """Of the flood's 80 requests some are let in, and those are computed before."""
    model = await asyncio.to_thread(
        split, mobilenet(64), name="waits", stages=2, bandwidth=LOOPBACK
    )
    inputs = {"image": np.zeros((1, 3, 64, 64), np.float32)}
    ended: list[str] = []
    async with (
        mesh_of(model, "shard-1", "shard-2", shm=shm) as local,
        swarm.connect(local.url, local.name) as flood,
    ):

        async def one(mesh: Any, priority: str) -> None:
            result = await mesh.ask("waits", inputs, 60.0, priority=priority)
            assert result.status is Status.OK, result.message
            ended.append(priority)

        await one(local.mesh, "high")
        await one(flood, "")  # which hears of priorities by its answer
        ended.clear()
        async with asyncio.TaskGroup() as group:
            for number in range(80):
                group.create_task(one(flood, "low" if number % 4 == 0 else ""))
            await eventually(lambda: len(ended) >= 3, "the flood is under way")
            before = len(ended)
            for _ in range(3):
                group.create_task(one(local.mesh, "high"))
    last = max(at for at, priority in enumerate(ended) if priority == "high")
    assert last - before <= 30
    lows = [at for at, priority in enumerate(ended) if priority == "low"]
    assert len(ended) == 83
    assert lows[0] <= 40  # they have their share
