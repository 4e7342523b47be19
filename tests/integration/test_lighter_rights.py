"""Under rights a lighter model answers whoever may ask it, by every door, and nobody else."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.gateways import address, ask, gateway_of
from support.meshes import LOOPBACK, digits, mesh_of, split_digits

import swarm
from nodes.access import AccessOptions
from nodes.up.mesh import LocalMesh, push
from shards.split.split import SplitResult, split
from shards.zoo import digits_lite_model
from swarm import Status

pytestmark = [pytest.mark.integration, pytest.mark.processes]

LITE, BUDGET = "digits_lite", 1.0
USERS = {  # role, models, whether the lighter model answers its requests
    "client of the model": ("client", ["digits"], True),
    "requester of both": ("requester", ["digits", LITE], True),
    "requester of the model alone": ("requester", ["digits"], False),
}


def with_lighter(result: SplitResult) -> SplitResult:
    lighter = {"model": LITE, "version": "", "degrades": False}
    parts = {**result.manifest.parts, "lighter_model": lighter}
    return replace(result, manifest=replace(result.manifest, parts=parts))


async def by_json(local: LocalMesh, access: AccessOptions, image: np.ndarray) -> str:
    """The model that answers what a client of plain NATS asks."""
    async with swarm.connect(local.url, local.name, **access.options()) as mesh:
        body = body_of(image, budget_ms=BUDGET * 1e3, allow_degraded=True)
        subject = mesh.subjects.infer("digits")
        raw = await mesh.link.request(subject, json.dumps(body).encode(), 2 * BUDGET)
        return str(json.loads(bytes(raw.data))["model_name"])


def body_of(image: np.ndarray, **parameters: Any) -> dict[str, Any]:
    tensor = {"name": "image", "datatype": "FP32", "shape": list(image.shape)}
    return {"inputs": [tensor | {"data": image.ravel().tolist()}], "parameters": parameters}


async def test_whoever_may_ask_gets_its_answer_and_others_are_told_which_right_is_missing() -> None:
    images, _ = digits()
    image = images[:1]
    lite = split(digits_lite_model(), name=LITE, stages=1, bandwidth=LOOPBACK)
    async with mesh_of(secure=True) as local:
        assert local.rights is not None
        assert local.server is not None
        for result in (lite, with_lighter(split_digits(stages=2))):
            await push(local, result.manifest.to_json(), result.files)
        local.start("shard-1", LITE)
        nodes = [local.start(role, "digits") for role in ("shard-1", "shard-2")]
        gateway = await gateway_of(local, "--http", "0")
        users = {
            user: local.rights.access(f"user-{number}", role, *models)
            for number, (user, (role, models, _)) in enumerate(USERS.items())
        }
        for gone in ("stage 2", "every node"):
            for node in nodes[1:] if gone == "stage 2" else nodes[:1]:
                node.wanted = False
                node.signal(signal.SIGKILL)
            for user, access in users.items():
                case, answered = (gone, user), USERS[user][2]
                async with swarm.connect(local.url, local.name, **access.options()) as mesh:
                    asked = {"image": image}
                    result = await mesh.ask("digits", asked, BUDGET, allow_degraded=False)
                    assert result.status in (Status.DEADLINE_EXCEEDED, Status.UNAVAILABLE), case
                    result = await mesh.ask("digits", asked, 2 * BUDGET, allow_degraded=True)
                assert result.degraded is answered, (case, result)
                if answered:
                    assert result.model == LITE, case
                else:
                    assert result.status in (Status.DEADLINE_EXCEEDED, Status.UNAVAILABLE), case
                    assert f"with --model {LITE} too" in result.message, case
            plain = users["client of the model"]
            assert await by_json(local, plain, image) == LITE, gone
            url = f"{address(local, gateway)}/v2/models/digits/infer"
            body = body_of(image, timeout=int(BUDGET * 1e6), allow_degraded=True)
            code, _, answer = await asyncio.to_thread(ask, url, body)
            assert (code, answer["model_name"]) == (200, LITE), gone
