"""Learned weights reach every node that serves: each answer names its version, and goes back."""

from __future__ import annotations

import asyncio
import json
import time
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.commands import Said, said
from support.meshes import LOOPBACK, READY, mesh_of
from support.waiting import eventually

import swarm
from nodes.learning.frozen import FrozenModel
from shards.split.split import SplitResult, split
from shards.zoo import digits_heldout
from shards.zoo.fresh_head import digits_with_fresh_head
from swarm.learning.weights import Weights
from swarm.model import ModelInfo
from swarm.security.identity import Identity

MODEL = "fresh"


@cache
def split_fresh() -> SplitResult:
    return split(digits_with_fresh_head(), name=MODEL, stages=3, bandwidth=LOOPBACK)


def frozen_part() -> FrozenModel:
    result = split_fresh()
    info = ModelInfo.from_manifest(result.manifest.to_json())
    return FrozenModel.load(result.manifest, info, result.files.__getitem__)


class Minter:
    """Makes weight versions of random heads, and knows what each must answer."""

    def __init__(self, mesh: swarm.Mesh) -> None:
        self.weights = Weights(mesh.link, mesh.subjects, Identity.make())
        self.frozen = frozen_part()
        self.images = digits_heldout()[0][:4]
        self._features = self.frozen.features({"image": self.images})
        self._rng = np.random.default_rng(5)
        self.expected: dict[int, np.ndarray] = {0: np.zeros((4, 10), np.float32)}

    async def mint(self) -> int:
        layout = self.frozen.layout
        matrix = self._rng.standard_normal((layout.width, layout.classes)).astype(np.float32)
        head = layout.parameters(matrix, self._rng.standard_normal(10).astype(np.float32))
        held = await self.weights.read(MODEL, "1")
        record = await self.weights.mint(
            MODEL,
            "1",
            self.frozen.base,
            held,
            self.frozen.stored(head),
            by="learner-1",
            at=time.time(),
            accuracy=0.5,
            samples=10,
            taught=["learner-1", "learner-2"],
        )
        assert record is not None
        self.expected[record.n] = layout.logits(head, self._features)
        return record.n

    def is_right(self, index: int, result: swarm.Result) -> bool:
        """Whether the answer is the one of the weight version that its last hop names."""
        expected = self.expected[result.hops[-1].weights][index]
        return bool(np.allclose(result.outputs["logits"][0], expected, rtol=1e-4, atol=1e-3))


@pytest.mark.benchmark
async def test_every_node_serves_the_present_weights_and_going_back_reaches_all_of_them() -> None:
    roles = ("shard-1", "shard-2", "shard-3", "fallback")
    async with mesh_of(split_fresh(), *roles) as local:
        minter = Minter(local.mesh)
        nodes = local.supervisor.nodes

        async def command(*arguments: str) -> Said:
            where = ("--nats", local.url, "--mesh", local.name)
            return await asyncio.to_thread(said, "model", *arguments, *where)

        async def ask(index: int = 0, **more: Any) -> swarm.Result:
            image = {"image": minter.images[index : index + 1]}
            result = await local.mesh.infer(MODEL, image, 30.0, **more)
            assert minter.is_right(index, result), result.hops
            return result

        assert (await ask()).hops[-1].weights == 0
        for _ in range(3):
            number = await minter.mint()
            for index in range(4):
                assert (await ask(index, weights=number)).hops[-1].weights == number

        # The replica that takes over has the same weights, whoever it is.
        victim = nodes[2]
        victim.wanted = False
        victim.signal(9)
        await eventually(lambda: not victim.alive, "shard-3 is dead")
        result = await ask(1, weights=3)
        assert result.hops[-1].node.startswith("fallback")

        back = await command("rollback", MODEL, "--weights", "1", "--json")
        assert back.code == 0, back
        assert json.loads(back.stdout) | {"epoch": 0} == {
            "model": MODEL,
            "version": "1",
            "restored": 1,
            "weights": 4,
            "epoch": 0,
        }
        minter.expected[4] = minter.expected[1]
        assert (await ask(2, weights=4)).hops[-1].weights == 4

        # A node that starts later begins with the present weights, not with the base's.
        victim.start()
        victim.wanted = True
        await local.ready(READY)
        for _ in range(20):
            assert (await ask(3)).hops[-1].weights == 4

        doc = json.loads((await command("weights", MODEL, "--json")).stdout)
        assert (doc["present"], [row["weights"] for row in doc["weights"]]) == (4, [1, 2, 3, 4])
        assert doc["weights"][0]["taught"] == ["learner-1", "learner-2"]
        assert doc["weights"][3]["restores"] == 1
        people = await command("weights", MODEL)
        assert "4 (serves) = 1 again" in people.stdout

        refused = await command("rollback", MODEL, "--weights", "99")
        assert refused.code == 1
        assert "kept are 1 to 4, and the base, 0" in " ".join(refused.stderr.split())
