"""Recorded requests run again with the weights that answered them."""

from __future__ import annotations

import pytest
from support.meshes import READY, add_model
from support.waiting import eventually
from test_learned_weights import MODEL, Minter, split_fresh

import swarm
from nodes.up.mesh import local_mesh

pytest.importorskip("nodes.records", reason="the feature `records` is not there")
from nodes.records.recorded import recorded
from nodes.records.recording import Recording, RecordLimits
from nodes.records.session import ReplaySession, replay_same

pytestmark = [pytest.mark.integration, pytest.mark.processes]


async def test_a_request_runs_again_with_the_weights_of_then() -> None:
    async with local_mesh(shm=False) as local:
        minter = Minter(local.mesh)
        await minter.weights.prepare()
        await add_model(local, split_fresh())
        for role in ("shard-1", "shard-2", "shard-3"):
            local.start(role, MODEL, "--audit", "--max-batch", "1")
        await local.ready(READY)
        link, subjects = local.mesh.link, local.mesh.subjects
        recording = Recording(link, subjects, MODEL, "1", 1.0)
        await recording.start(RecordLimits())
        async with swarm.connect(local.url, stored=True) as mesh:
            image = {"image": minter.images[:1]}
            await mesh.infer(MODEL, image, 10.0)
            for _ in range(2):
                await mesh.infer(MODEL, image, 10.0, weights=await minter.mint())
        await eventually(lambda: recording.kept == 9, "all stages are kept")
        await recording.stop()

        async def all_on_record() -> bool:
            return all(each.output for each in await recorded(link, subjects, MODEL))

        await eventually(all_on_record, "all are on record")
        found = await recorded(link, subjects, MODEL)
        assert [request.weights for request in found] == [0, 1, 2]
        session = await ReplaySession.open(local.mesh, MODEL, "1")
        try:
            for request in found:
                replay = await replay_same(session, request)
                assert (replay.compared, replay.equal(0.0)) == (3, True), replay
        finally:
            session.close()
