"""Copies of requests cost a request nothing."""

from __future__ import annotations

import asyncio

from swarm.shadows import answered
from swarm.wire.messages import Result


async def test_a_request_is_answered_though_its_copy_was_given_up_meanwhile() -> None:
    compare: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

    async def request() -> Result:
        compare.cancel()
        return Result("r", "m")

    assert (await answered(request(), compare)).id == "r"
