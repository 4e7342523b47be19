"""The thread that computes outlives whatever its work raises."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nodes.stage.worker import Worker


class PanicException(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize("error", [ValueError("bad"), MemoryError(), PanicException("a panic")])
async def test_work_that_raises_anything_is_told_and_the_next_work_is_done(
    error: BaseException,
) -> None:
    loop = asyncio.get_running_loop()
    worker = Worker(loop, "test")
    ended: list[asyncio.Future[Any]] = [loop.create_future() for _ in range(2)]

    def fails() -> None:
        raise error

    worker.submit(fails, lambda result, failure, _: ended[0].set_result(failure))
    worker.submit(lambda: 7, lambda result, failure, _: ended[1].set_result(result))
    failure, result = await asyncio.wait_for(asyncio.gather(*ended), 30.0)
    worker.close()
    assert str(error) in str(failure)
    assert (result, worker.queued) == (7, 0)
