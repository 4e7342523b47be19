"""Two gateways behind a balancer end and start again in turn: their clients do not notice."""

from __future__ import annotations

import asyncio
import signal

import pytest
from support.balancer import Balancer, Behind
from support.meshes import READY, digits, mesh_of, split_digits
from support.ports import free_port
from support.triton_clients import triton_loads
from support.waiting import eventually

from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess

pytestmark = [pytest.mark.integration, pytest.mark.processes, pytest.mark.benchmark]

RATE = 100.0  # requests a second, of each protocol
AGE = "1"  # seconds of a connection; the default's promise is the same, and takes longer to keep


def gateway_at(local: LocalMesh, place: Behind) -> NodeProcess:
    doors = [word for name, port in place.ports.items() for word in (f"--{name}", str(port))]
    return local.start("gateway", "", *doors, "--gateway-connection-age", AGE)


async def test_gateways_that_start_again_in_turn_lose_no_request_of_tritonclient() -> None:
    places = [Behind({"http": free_port(), "grpc": free_port()}) for _ in range(2)]
    images, logits = digits()
    given, expected = ("image", images[:1]), ("logits", logits[:1])
    async with mesh_of(split_digits(stages=1), "shard-1") as local, Balancer(places) as balancer:
        nodes = [gateway_at(local, place) for place in places]
        async with asyncio.timeout(READY):
            for place in places:
                await balancer.until(place, ready=True)
        addresses = {name: f"127.0.0.1:{port}" for name, port in balancer.ports.items()}
        async with triton_loads(addresses, "digits", given, expected, RATE) as loads:
            for node, place in zip(nodes, places, strict=True):
                node.wanted = False
                node.signal(signal.SIGTERM)
                await eventually(lambda node=node: not node.alive, "it leaves")
                local.supervisor.nodes.remove(node)
                assert node.process is not None
                assert node.process.returncode == 0
                gateway_at(local, place)
                async with asyncio.timeout(READY):
                    await balancer.until(place, ready=True)
    for each in loads:
        assert len(each.asked) > RATE
        assert each.errors == []
