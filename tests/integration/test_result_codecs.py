"""Results have codecs of their own, in whatever features travel: real nodes, real messages."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from support.meshes import READY, mesh_of
from two_results import CUT, VALUES, early_and_late, expected

import swarm
from nodes.up.mesh import LocalMesh, push
from shards.manifest import CodecError
from shards.split.split import split

pytestmark = [pytest.mark.integration, pytest.mark.processes]

INPUT = np.random.default_rng(3).random((1, VALUES), np.float32)
ALLOWED = CodecError(0.1, 0.01, 1)
I4_STEP, I8_STEP = 1 / 15, 1 / 255  # of values from 0 to 1


async def test_the_owner_says_in_which_codecs_results_travel_and_features_do_not_matter() -> None:
    """All nodes use i4. One version allows i4 for features alone, the other one i8 for results."""
    async with mesh_of(shm=False) as local:
        for model, results in (("exact", {}), ("close", {"i8": ALLOWED})):
            made = split(early_and_late(), name=model, cuts=[CUT], bandwidth=1e6, profile=False)
            manifest = replace(made.manifest, codecs={"i4": ALLOWED}, result_codecs=results)
            assert manifest.shard(2).carries == ("early",)
            await push(local, manifest.to_json(), made.files)
            for role in ("shard-1", "shard-2"):
                local.start(role, model, "--codec", "i4")
        await local.ready(READY)
        exact = expected(INPUT)

        answer = await coded_answer(local, "exact")
        assert answer.codec == ""
        assert np.array_equal(answer.outputs["early"], exact["early"])
        # Computed from features, which are off, and then not changed any more.
        late = apart(answer.outputs["late"], exact["late"])
        assert I8_STEP < late <= I4_STEP / 2 + 1e-6

        answer = await coded_answer(local, "close")
        assert answer.codec.startswith("i8")
        # Twice in 255 steps: at the cut, and as a result.
        assert 0 < apart(answer.outputs["early"], exact["early"]) <= I8_STEP / 2 + 1e-6
        late = apart(answer.outputs["late"], exact["late"])
        assert I8_STEP < late <= I4_STEP / 2 + I8_STEP + 1e-6


async def coded_answer(local: LocalMesh, model: str) -> swarm.Result:
    """The first one whose features crossed the cut in a codec: nodes learn of each other's."""
    async with asyncio.timeout(READY):
        while True:
            answer = await local.mesh.infer(model, {"input": INPUT}, 30.0)
            assert answer.hops[0].codec == ""  # the client's own setting: near, so exact
            if answer.hops[1].codec:
                assert answer.hops[1].codec.startswith("i4")
                return answer
            assert np.array_equal(answer.outputs["late"], expected(INPUT)["late"]) or answer.codec


def apart(one: np.ndarray, two: np.ndarray) -> float:
    return float(np.abs(one - two).max())
