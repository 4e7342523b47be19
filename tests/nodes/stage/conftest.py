"""Stages, made as a test wants them and closed behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from stage_bench import Bench, FakeModel

MakeBench = Callable[..., Awaitable[Bench]]


@pytest.fixture
async def bench() -> AsyncIterator[MakeBench]:
    """Makes a stage: `await bench(model, stage=…, **options)`."""
    async with AsyncExitStack() as stack:

        async def make(model: FakeModel | None = None, **options: Any) -> Bench:
            return await stack.enter_async_context(Bench(model or FakeModel(), **options))

        yield make


@pytest.fixture
def first(bench: MakeBench) -> Callable[[], Awaitable[Bench]]:
    """Stage 1 of two, whose runs are short; the next one is a process of this host."""

    async def make(**options: object) -> Bench:
        b = await bench(FakeModel(compute_ms=0.01), stage=1, **options)
        b.next_is_here()
        return b

    return make
