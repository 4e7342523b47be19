"""Behind a gateway a shard is killed: its clients do not notice."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from support.gateways import address, gateway_of
from support.meshes import digits, mesh_of, split_digits
from support.triton_clients import triton_loads

pytestmark = [pytest.mark.integration, pytest.mark.processes]


async def test_clients_of_http_and_of_grpc_do_not_see_a_shard_killed() -> None:
    images, logits = digits()
    given, expected = ("image", images[:1]), ("logits", logits[:1])
    async with mesh_of(split_digits(stages=1), "shard-1", "fallback") as local:
        gateway = await gateway_of(local, "--http", "0", "--grpc", "0")
        [shard] = [node for node in local.supervisor.nodes if node.role == "shard-1"]
        doors = {
            protocol: address(local, gateway, protocol).removeprefix("http://")
            for protocol in ("http", "grpc")
        }
        async with triton_loads(doors, "digits", given, expected, 50.0) as loads:
            shard.wanted = False
            shard.signal(signal.SIGKILL)
            assert await local.until(lambda: by_fallback(local.statuses) >= 20, 30.0)
        local.supervisor.nodes.remove(shard)
        for load in loads:
            assert load.asked
            assert load.errors == []


def by_fallback(statuses: dict[str, dict[str, Any]]) -> int:
    """Requests that the fallback node has computed, as its status says."""
    [status] = [each for each in statuses.values() if each["role"] == "fallback"]
    return sum(stage["counters"]["served"] for stage in status["stages"])
