from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fake_stage import Desk
from real_server import Links

from swarm.lanes import LaneOptions
from swarm.services.embedded import EmbeddedServer


@pytest.fixture
def lane_options() -> LaneOptions:
    return LaneOptions(depth=8, ack_wait=2.0)


@pytest.fixture
async def desk(
    server: EmbeddedServer, links: Links, lane_options: LaneOptions
) -> AsyncIterator[Desk]:
    """Not opened yet."""
    made = Desk(links, server.url, lane_options)
    yield made
    await made.close()
