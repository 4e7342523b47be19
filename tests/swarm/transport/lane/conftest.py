"""A bench of lanes on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from lane_tools import Bench
from real_server import Links

from nodes.up.embedded_server import EmbeddedServer
from swarm.transport.lane import LaneOptions


@pytest.fixture
def lane_options() -> LaneOptions:
    return LaneOptions(depth=16, ack_wait=0.2)


@pytest.fixture
async def bench(
    server: EmbeddedServer, links: Links, lane_options: LaneOptions
) -> AsyncIterator[Bench]:
    made = Bench(links, server.url, lane_options)
    yield made
    await made.close()
