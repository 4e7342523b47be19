"""Under rights a gateway writes what simple clients asked it."""

from __future__ import annotations

import pytest
from support.meshes import READY, Load, add_model, split_digits

import swarm
from nodes.up.mesh import local_mesh
from swarm.records.stream import ensure_audit, extent_of

pytestmark = [pytest.mark.integration, pytest.mark.processes]

RATE = 20.0


async def test_a_gateway_writes_what_simple_clients_asked_it() -> None:
    async with local_mesh(secure=True) as local:
        await ensure_audit(local.mesh.link, local.mesh.subjects)
        await add_model(local, split_digits("1"), "shard-1", "shard-2", "shard-3")
        local.start("gateway", "", "--audit")
        await local.ready(READY)
        assert local.rights is not None
        link, audit = local.mesh.link, local.mesh.subjects.stream_of("audit")
        asks = local.rights.issue("client", "digits").options()
        # Simple clients are answered by any node, so ask until the gateway was one of them.
        async with swarm.connect(local.url, agent="simple", **asks) as simple:
            for _ in range(20):
                await Load(simple, RATE).run(10)
                extent = await extent_of(link, audit)
                if extent is not None and extent.last > 0:
                    break
            assert extent is not None
            assert extent.last > 0, "the gateway's records are stored"
