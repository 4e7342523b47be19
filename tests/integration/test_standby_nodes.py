"""A standby takes one of two stages that are lost, and gives it back to its primary."""

from __future__ import annotations

import asyncio
import signal

import pytest
from meshes import READY, Load, add_model, split_digits, until

import swarm
from nodes.local.mesh import local_mesh

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_two_lost_stages_have_two_nodes_until_their_primaries_are_back() -> None:
    """The standby takes the first; the fallback, which has nothing to do with it, the second."""
    async with local_mesh() as local:
        roles = ("shard-1", "shard-2", "shard-3", "fallback", "standby")
        first, second, _, fallback, standby = await add_model(local, split_digits(), *roles)

        def events() -> dict[str, int]:
            status = local.status_of(standby)
            return {} if status is None else status["events"]

        def node_of(process: object) -> str:
            status = local.status_of(process)  # type: ignore[arg-type]
            assert status is not None
            return str(status["node"])

        async with swarm.connect(local.url) as mesh:
            load = Load(mesh, rate=30)
            stream = asyncio.create_task(load.run(450))

            def served(stage: int) -> list[str]:
                """The nodes of the newest answers."""
                return [h.node for r in load.results[-20:] for h in r.hops if h.stage == stage]

            await until(lambda: len(load.results) >= 60, 15.0, "the first answers")
            first.wanted = False
            first.signal(signal.SIGKILL)
            await until(lambda: events().get("took-over") == 1, 10.0, "the standby takes stage 1")
            second.wanted = False
            second.signal(signal.SIGKILL)
            spare, cover = node_of(standby), node_of(fallback)
            await until(
                lambda: set(served(1)) == {spare} and set(served(2)) == {cover},
                15.0,
                "each lost stage has a node of its own",
            )
            for process in (first, second):
                process.start()
                process.wanted = True
            await until(lambda: events().get("gave-back") == 1, READY, "the standby gives it back")
            await stream
            load.check(450)
            load = Load(mesh, rate=30)
            await load.run(30)
            load.check(30)
            nodes = {hop.node for result in load.results for hop in result.hops}
            assert not nodes & {spare, cover}, "the primaries do their work again"
