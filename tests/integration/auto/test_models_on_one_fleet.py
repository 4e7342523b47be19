"""Two models on two devices of this machine, by priority: a device dies, and what fits goes on."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest
from support.commands import said
from support.meshes import add_model, close, digits, mesh_of, split_digits

from nodes.up.mesh import LocalMesh
from shards.split.split import split
from shards.zoo import digits_lite_model

pytestmark = [pytest.mark.integration, pytest.mark.processes]

DEVICES = {"one": 22, "two": 21}  # megabytes: digits takes 17, the other one 8
SETTLES_WITHIN = 60.0  # seconds


def told(local: LocalMesh, *arguments: str) -> Any:
    answer = said(*arguments, "--nats", local.url, "--mesh", local.name, "--json")
    assert answer.code == 0, answer.stderr
    return json.loads(answer.stdout)


def takes(memories: list[dict[str, Any]]) -> dict[str, set[str]]:
    """The devices by the models that take room there."""
    found: dict[str, set[str]] = {}
    for memory in memories:
        assert sum(row["bytes"] for row in memory["models"]) <= memory["bytes"]
        for row in memory["models"]:
            if row["bytes"]:
                found.setdefault(row["model"], set()).add(memory["memory"].partition("/")[2])
    return found


async def until(local: LocalMesh, wanted: set[str], states: set[str]) -> dict[str, set[str]]:
    """Wait until these models take room, and their rows say so."""
    ends = asyncio.get_running_loop().time() + SETTLES_WITHIN
    while True:
        memories = (await asyncio.to_thread(told, local, "model", "rooms"))["memories"]
        found = takes(memories)
        seen = {row["lacking"] and "lacks" for memory in memories for row in memory["models"]}
        if found.keys() == wanted and seen >= states:
            return found
        assert asyncio.get_running_loop().time() < ends, memories


async def test_models_share_two_devices_and_the_lower_one_gives_way() -> None:
    lite = split(digits_lite_model(), name="lite", version="1", stages=1)
    images, expected = digits()
    async with mesh_of() as local:
        await add_model(local, split_digits(stages=2))
        await add_model(local, lite)
        await local.mesh.registry.set_priority("digits", 10)
        nodes = {
            (device, model): local.start(
                "auto",
                model,
                *("--memory-mb", str(size), "--memory-pool", device, "--gossip", "local"),
            )
            for device, size in DEVICES.items()
            for model in ("lite", "digits")
        }
        await local.ready(SETTLES_WITHIN)
        placed = await until(local, {"digits", "lite"}, set())
        assert not placed["digits"] & placed["lite"]

        (victim,) = placed["digits"]
        wrong = 0

        async def ask() -> None:
            nonlocal wrong
            for n in range(100):
                answer = await local.mesh.infer("digits", {"image": images[n : n + 1]}, 30.0)
                wrong += not close(answer.outputs["logits"], expected[n : n + 1])
                await asyncio.sleep(0.02)  # the pace of the requests

        asking = asyncio.create_task(ask())
        for (device, _), process in nodes.items():
            if device == victim:
                process.wanted = False
                process.signal(signal.SIGKILL)
        await asking
        assert not wrong
        placed = await until(local, {"digits"}, {"lacks"})
        assert placed["digits"] == DEVICES.keys() - {victim}
