from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fleet import Fleet
from real_server import Links

from nodes.up.embedded_server import EmbeddedServer


@pytest.fixture
async def fleet(server: EmbeddedServer, links: Links) -> AsyncIterator[Fleet]:
    made = Fleet(links, server.url)
    yield made
    await made.close()
