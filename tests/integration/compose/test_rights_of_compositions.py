"""Under rights a node of a composition asks its models, and may do nothing else with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from composed import second, summed
from support.compositions import built
from support.meshes import READY, add_model, digits, split_digits

import swarm
from nodes.up.mesh import local_mesh, push
from swarm import Status

pytestmark = [pytest.mark.integration, pytest.mark.processes]


async def test_a_composition_is_pushed_promoted_and_served_without_a_violation(
    tmp_path: Path,
) -> None:
    images, logits = digits()
    async with local_mesh(secure=True) as local:
        assert local.rights is not None
        assert local.server is not None
        await add_model(local, split_digits(stages=2), "shard-1", "shard-2")
        await add_model(local, second(), "shard-1")
        operator = local.rights.issue("operator").arguments()
        manifest, files = await built(local, tmp_path, summed("1"), "sum", more=operator)
        await push(local, manifest.to_json(), files)
        for role in ("shard-1", "fallback"):
            local.start(role, "sum")
        await local.ready(READY)
        client = local.rights.issue("client", "sum")
        async with swarm.connect(local.url, agent="c", **client.options()) as asks:
            for at in range(40):
                result = await asks.ask("sum", {"image": images[at][None]}, 10.0)
                assert result.status is Status.OK, result.message
                assert np.allclose(result.outputs["logits"], logits[at][None], atol=1e-3)
        log = local.server.log.splitlines()
        assert [line for line in log if "iolation" in line] == []
