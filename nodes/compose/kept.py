"""Answers of a part's model that the composition's node keeps, as the part's `cache` says.

Other than the model's own (`nodes.cache`), which knows the weights that serve, these learn from
answers which weights serve: an answer of newer weights ends all older ones, and until one comes
they are bounded by their age.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import numpy as np

from nodes.compose.telling import Recalled
from shards.cache.answers import KeptAnswer, KeptAnswers, own_copy
from shards.cache.key import key_of
from shards.cache.part import CacheBounds
from shards.compose.run import Tensors
from swarm.wire.messages import Result

Ask = Callable[[Tensors], Awaitable[Result]]


class PartAnswers:
    """by_row: each row of the inputs is a question of its own."""

    def __init__(
        self, bounds: CacheBounds, by_row: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.answers = KeptAnswers(bounds)
        self._by_row = by_row
        self._clock = clock
        self._weights = 0
        self._under_way: dict[bytes, asyncio.Future[Tensors | None]] = {}

    async def asked(self, tensors: Tensors, ask: Ask, wait: float) -> tuple[Tensors, Recalled]:
        """The outputs, and how much of them was kept. ask: what is not kept is asked for so; what
        it raises is raised. wait: seconds for the answer to an equal question that is under
        way."""
        if self._by_row:
            return await self._rows(tensors, ask)
        key, now = key_of(tensors), self._clock()
        if key is None:
            return dict((await ask(tensors)).outputs), Recalled(0, 1)
        if (kept := self.answers.recall(key, now)) is not None:
            weights = frozenset({kept.weights})
            return dict(kept.outputs), Recalled(1, 1, now - kept.at, weights)
        before = self._under_way.get(key)
        if before is not None:
            await asyncio.wait([before], timeout=max(0.0, wait))
            if before.done() and (outputs := before.result()) is not None:
                self.answers.counters.joined += 1
                return dict(outputs), Recalled(1, 1, 0.0, frozenset({self._weights}))
        self.answers.counters.misses += 1
        result = await (
            self._lead(key, tensors, ask) if before is None else self._ask(key, tensors, ask)
        )
        return dict(result.outputs), Recalled(0, 1)

    async def _lead(self, key: bytes, tensors: Tensors, ask: Ask) -> Result:
        """Ask, and tell those that wait; None where no answer came, or an unfamiliar one, which
        says so to whom it answers alone: they ask themselves."""
        future = self._under_way[key] = asyncio.get_running_loop().create_future()
        outputs: Tensors | None = None
        try:
            result = await self._ask(key, tensors, ask)
            outputs = None if result.unfamiliarity > 1 else dict(result.outputs)
            return result
        finally:
            del self._under_way[key]
            future.set_result(outputs)

    async def _ask(self, key: bytes, tensors: Tensors, ask: Ask) -> Result:
        result = await ask(tensors)
        self._keep([key], result, [dict(result.outputs)])
        return result

    async def _rows(self, tensors: Tensors, ask: Ask) -> tuple[Tensors, Recalled]:
        count, now = min(map(len, tensors.values())), self._clock()
        keys = [key_of(_row(tensors, place)) for place in range(count)]
        kept = [None if key is None else self.answers.recall(key, now) for key in keys]
        missing = [place for place, answer in enumerate(kept) if answer is None]
        ages = [now - answer.at for answer in kept if answer is not None]
        weights = frozenset(answer.weights for answer in kept if answer is not None)
        told = Recalled(len(ages), count, max(ages, default=0.0), weights)
        rows: list[Tensors] = [{} if answer is None else dict(answer.outputs) for answer in kept]
        if missing:
            self.answers.counters.misses += len(missing)
            result = await ask({name: array[missing] for name, array in tensors.items()})
            outputs = dict(result.outputs)
            if any(len(array) != len(missing) for array in outputs.values()):
                whole = len(missing) == count
                # It does not answer by rows after all: the part says so, once all is asked for.
                return (outputs if whole else dict((await ask(tensors)).outputs)), Recalled(
                    0, count
                )
            fresh = [_row(outputs, place) for place in range(len(missing))]
            for place, row in zip(missing, fresh, strict=True):
                rows[place] = row
            self._keep([keys[place] for place in missing], result, fresh)
        return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}, told

    def _keep(self, keys: list[bytes | None], result: Result, rows: list[Tensors]) -> None:
        weights = {hop.weights for hop in result.hops if hop.stage > 0}
        if result.weights > self._weights:
            self._weights = result.weights
            self.answers.clear()
        if result.degraded or result.unfamiliarity > 1 or weights != {self._weights}:
            return
        at = self._clock() - (result.cached_ms or 0.0) / 1e3
        for key, outputs in zip(keys, rows, strict=True):
            if key is not None:
                self.answers.keep(key, KeptAnswer(own_copy(outputs), at, self._weights))


def _row(tensors: Tensors, place: int) -> Tensors:
    return {name: array[place : place + 1] for name, array in tensors.items()}
