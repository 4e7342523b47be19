"""Two linked servers, for the tests of sites."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from bench.faults.site.linked_servers import LinkedServers, linked_servers


@pytest.fixture
async def servers() -> AsyncIterator[LinkedServers]:
    async with linked_servers() as made:
        yield made
