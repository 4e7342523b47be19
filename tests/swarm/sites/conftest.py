"""Two linked servers, for the tests of sites."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.linked_sites import LinkedServers, linked_servers


@pytest.fixture
async def servers() -> AsyncIterator[LinkedServers]:
    async with linked_servers() as made:
        yield made
