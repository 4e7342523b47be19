"""`swarm.over(nc)`: a mesh asked through a client's own connection of nats-py."""

from __future__ import annotations

import asyncio

import nats
import numpy as np
import pytest
from nats.aio.client import Client
from support.meshes import digits

import swarm
from nodes.up.mesh import LocalMesh

EVERYBODY = {"shard-1", "shard-2", "shard-3", "fallback"}

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_it_gives_the_answers_of_the_sdk_and_leaves_the_connection_open(
    digits_mesh: LocalMesh, nats_client: Client
) -> None:
    images, _ = digits()
    async with swarm.connect(digits_mesh.url) as mesh, swarm.over(nats_client) as over:
        for image in images[:8]:
            inputs = {"image": image[None]}
            own = await over.infer("digits", inputs, session="s")
            theirs = await mesh.infer("digits", inputs)
            assert np.array_equal(own.outputs["logits"], theirs.outputs["logits"])
            assert [hop.stage for hop in own.hops] == [1, 2, 3]
            assert own.latency > 0
        for _ in range(100):  # whoever answers hears of the others by gossip
            roles = {node["role"] for node in (await over.status()).values()}
            if roles >= EVERYBODY:
                break
            await asyncio.sleep(0.1)
        assert roles >= EVERYBODY
    assert nats_client.is_connected
    await nats_client.flush()


@pytest.mark.parametrize(
    ("model", "inputs", "budget", "error"),
    [
        ("digits", {"image": np.zeros((1, 3), np.float32)}, 5.0, swarm.InvalidArgument),
        ("digits@99", {"image": np.zeros((1, 1, 8, 8), np.float32)}, 5.0, swarm.NotFound),
        ("other", {"image": np.zeros((1, 1, 8, 8), np.float32)}, 5.0, swarm.NotFound),
        ("digits", {"image": np.zeros((1, 1, 8, 8), np.float32)}, 0.0, swarm.DeadlineExceeded),
        (
            "digits",
            {"image": np.zeros((1, 1, 8, 8), np.float32)},
            float("nan"),
            swarm.InvalidArgument,
        ),
        ("a b", {"image": np.zeros((1, 1, 8, 8), np.float32)}, 5.0, swarm.InvalidArgument),
        ("digits", {"image": np.zeros((1, 9_000_000), np.float32)}, 5.0, swarm.InvalidArgument),
    ],
    ids=["shape", "version", "model", "no time", "nan", "no name", "too large"],
)
async def test_a_failure_is_the_error_of_the_sdk(
    nats_client: Client,
    model: str,
    inputs: dict[str, np.ndarray],
    budget: float,
    error: type[Exception],
) -> None:
    async with swarm.over(nats_client) as over:
        with pytest.raises(error):
            await over.infer(model, inputs, budget)


async def test_where_no_node_is_the_error_says_so(digits_mesh: LocalMesh) -> None:
    client = await nats.connect(digits_mesh.url)
    async with swarm.over(client, mesh="elsewhere") as over:
        with pytest.raises(swarm.Unavailable, match="no node serves"):
            await over.infer("digits", {"image": np.zeros((1, 1, 8, 8), np.float32)})
        with pytest.raises(swarm.Unavailable, match="nobody answers"):
            await over.status()
    await client.close()
