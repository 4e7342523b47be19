"""The link is tested on both event loops: they end connections differently."""

from __future__ import annotations

import asyncio

import pytest
import uvloop


@pytest.fixture(params=["uvloop", "asyncio"])
def event_loop_policy(request: pytest.FixtureRequest) -> asyncio.AbstractEventLoopPolicy:
    if request.param == "uvloop":
        return uvloop.EventLoopPolicy()
    return asyncio.DefaultEventLoopPolicy()
