"""Recorded requests run again with the weights that answered them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from support.compositions import compose
from support.meshes import READY, add_model
from support.waiting import eventually
from test_learned_weights import MODEL, Minter, split_fresh

import swarm
from nodes.up.mesh import local_mesh
from swarm.errors import NotFound

pytest.importorskip("nodes.records", reason="the feature `records` is not there")
from nodes.records.recorded import recorded
from nodes.records.recording import Recording, RecordLimits
from nodes.records.session import ReplaySession, replay_same

pytestmark = [pytest.mark.integration, pytest.mark.processes]


COMPOSITION = """
[inputs]
image = { datatype = "FP32", shape = [1, 1, 8, 8] }

[[part]]
name = "learned"
model = "fresh"
inputs = { image = "image" }

[outputs]
logits = "learned.logits"
"""


async def test_a_request_runs_again_with_the_weights_of_then(tmp_path: Path) -> None:
    """Of a model, of a kept answer, and of the part of a composition."""
    async with local_mesh(shm=False) as local:
        minter = Minter(local.mesh)
        await minter.weights.prepare()
        kept = split_fresh()
        parts = {"cache": {"bytes": 1 << 20, "age_s": 600.0}}
        await add_model(local, replace(kept, manifest=replace(kept.manifest, parts=parts)))
        for role in ("shard-1", "shard-2", "shard-3"):
            local.start(role, MODEL, "--audit", "--max-batch", "1")
        await local.ready(READY)
        await compose(local, tmp_path, COMPOSITION, "asks")
        local.start("shard-1", "asks", "--audit", "--max-batch", "1")
        await local.ready(READY)
        link, subjects = local.mesh.link, local.mesh.subjects
        recording = Recording(link, subjects, MODEL, "1", 1.0)
        await recording.start(RecordLimits())
        of_parts = Recording(link, subjects, "asks", "1", 1.0)
        await of_parts.start(RecordLimits())
        async with swarm.connect(local.url, stored=True) as mesh:
            image = {"image": minter.images[:1]}
            await mesh.infer(MODEL, image, 10.0)
            for _ in range(2):
                await mesh.infer(MODEL, image, 10.0, weights=await minter.mint())
            asked = 3  # of these none was kept, since the weights came meanwhile
            while (await mesh.infer(MODEL, image, 10.0)).cached_ms is None:
                asked += 1
                await asyncio.sleep(0.2)
            await eventually(lambda: recording.kept == 3 * asked + 1, "all stages are kept")
            await recording.stop()
            composed = await mesh.infer("asks", image, 10.0)
            assert composed.hops[0].extra["weights_of"] == {"learned": [2]}
        await eventually(lambda: of_parts.kept == 1, "the composition's stage is kept")
        await of_parts.stop()

        async def all_on_record() -> bool:
            found = [
                *await recorded(link, subjects, MODEL),
                *await recorded(link, subjects, "asks"),
            ]
            return all(each.output for each in found)

        await eventually(all_on_record, "all are on record")
        *found, hit = await recorded(link, subjects, MODEL)
        assert [request.weights for request in found] == [0, 1, 2, *[2] * (asked - 3)]
        session = await ReplaySession.open(local.mesh, MODEL, "1")
        try:
            for request in found:
                replay = await replay_same(session, request)
                assert (replay.compared, replay.equal(0.0)) == (3, True), replay
            replay = await replay_same(session, hit)
            assert (replay.compared, replay.equal(0.0)) == (1, True), replay
            assert "kept at stage 1" in replay.note
        finally:
            session.close()
        (request,) = await recorded(link, subjects, "asks")
        session = await ReplaySession.open(local.mesh, "asks", "1")
        try:
            replay = await replay_same(session, request)
            assert (replay.compared, replay.equal(0.0)) == (2, True), replay
            (hop,) = request.audit["hops"]
            for weights, why in (([9], "weight version 9"), ([1, 2], "weight versions 1, 2")):
                other = request.audit | {"hops": [hop | {"weights_of": {"learned": weights}}]}
                one = replace(request, audit=other)
                with pytest.raises(NotFound, match=why):
                    await replay_same(session, one)
            other = request.audit | {"hops": [hop | {"weights_of": {"learned": [1]}}]}
            replay = await replay_same(session, replace(request, audit=other))
            assert not replay.equal(0.0), "other weights make another answer"
        finally:
            session.close()
