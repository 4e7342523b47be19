"""Requests on which a model's Loop never ends, beside others."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.endless import CUT, WIDTH, endless_model
from support.meshes import READY, mesh_of

import swarm
from nodes.up.mesh import push
from shards.split.split import split

pytestmark = [pytest.mark.integration, pytest.mark.processes]

SECONDS = 8.0
HONEST = {"input": np.ones((1, WIDTH), np.float32)}
ENDLESS = {"input": np.zeros((1, WIDTH), np.float32)}


@pytest.mark.benchmark  # a story of more than ten seconds
@pytest.mark.parametrize("budget", [1.0, 20.0])
async def test_one_clients_requests_that_never_end_keep_no_others_from_their_answers(
    budget: float,
) -> None:
    model = split(endless_model(), name="loop", cuts=[CUT], profile=False)
    async with mesh_of() as local:
        await push(local, model.manifest.to_json(), model.files)
        for role in ("shard-1", "shard-2", "fallback"):
            local.start(role, "loop")
        await local.ready(READY)
        name = local.mesh.subjects.mesh
        async with (
            swarm.connect(local.url, mesh=name) as eve,
            swarm.connect(local.url, mesh=name) as ann,
        ):
            ends = asyncio.get_running_loop().time() + SECONDS
            errors: list[swarm.SwarmError] = []

            async def ask_for_ever() -> None:
                while asyncio.get_running_loop().time() < ends:
                    try:
                        await eve.infer("loop", ENDLESS, budget=budget)
                    except swarm.SwarmError as error:
                        errors.append(error)
                        await asyncio.sleep(0.1)

            async with asyncio.TaskGroup() as group:
                for _ in range(5):
                    group.create_task(ask_for_ever())
                while asyncio.get_running_loop().time() < ends + 1.0:
                    result = await ann.infer("loop", HONEST, budget=10.0)
                    assert (result.outputs["out"] == 2).all()
                    await asyncio.sleep(0.05)
        kinds = {type(error) for error in errors}
        # Unavailable: the breaker of her own client.
        assert kinds - {swarm.Unavailable} == {swarm.DeadlineExceeded, swarm.ResourceExhausted}
        states = {status["role"]: status["state"] for status in local.statuses.values()}
        assert states == dict.fromkeys(("shard-1", "shard-2", "fallback"), "ready")
