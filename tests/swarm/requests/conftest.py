from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from fake_stage import Desk
from real_server import Links
from simulated_desk import SimulatedDesk

from nodes.up.embedded_server import EmbeddedServer
from swarm.transport.lane import LaneOptions


@pytest.fixture
async def real_desk(server: EmbeddedServer, links: Links) -> AsyncIterator[Desk]:
    """Not opened yet."""
    made = Desk(links, server.url, LaneOptions(depth=8, ack_wait=2.0))
    yield made
    await made.close()


@pytest.fixture
def desk() -> Iterator[SimulatedDesk]:
    """In simulated time; each test leaves nothing of its requests behind."""
    made = SimulatedDesk()
    yield made
    assert made.is_idle()
    made.requester.close()
