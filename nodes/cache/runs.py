"""Stage 1 of a version whose answers are kept: a question that was answered before is answered at
once, and equal questions that are under way at once are computed once.

    take ─┬─► kept ─────────────────────────────────────► the answer
          ├─► an equal one is under way ─► it waits ─┬──► the answer of that one
          │                                          └──► no answer came: it is computed itself
          └─► computed, here or by later stages ─► kept, and answers those that wait

What is not looked up is computed as ever: a request of a session, a copy of a request (a rollout
judges by these), one that asks for newer weights than this node has, more than 8 MB of input.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nodes.cache.around import AroundRuns, tell_hop
from nodes.cache.telling import COPY_TO, TellingRuns, take_out
from nodes.stage.compute import Outcomes, StageModel, StageOptions, StageRuns
from nodes.stage.counters import StageStats
from nodes.stage.jobs import Job
from shards.cache.answers import JOINED_SHARE, KeptAnswer, KeptAnswers, own_copy
from shards.cache.key import key_of
from shards.cache.part import CacheBounds
from swarm.errors import DecodeError, Status
from swarm.link import Link, LinkMessage
from swarm.model import ModelInfo
from swarm.transport.api import Delivery
from swarm.wire.hops import CACHED, Hop
from swarm.wire.messages import Result
from swarm.wire.unfamiliar import score_of

MOST_LEADING = 1024  # requests that are computed, and whose answers others may wait for
MOST_JOINED = 256  # requests that wait for another one's answer
MIXED = -1  # stages computed with unlike weights: such an answer is not kept


@dataclass(eq=False)
class _Leading:
    """A request that is computed. joined: those that wait for its answer, and until when. weights:
    of stage 1 when it began. told: what its run said of it."""

    id: str
    key: bytes
    weights: int
    ends: asyncio.TimerHandle | None = None
    joined: dict[Job, asyncio.TimerHandle] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)


def around_runs(
    bounds: CacheBounds, link: Link, info: ModelInfo, runs: Callable[..., StageRuns]
) -> Callable[..., StageRuns]:
    """What computes the requests of a stage of this version. runs: computes them otherwise."""

    def made(
        stage: int,
        model: StageModel,
        options: StageOptions,
        stats: StageStats,
        outcomes: Outcomes,
        clock: Callable[[], float],
        *more: object,
    ) -> StageRuns:
        def inside(to: Outcomes) -> StageRuns:
            return runs(stage, model, options, stats, to, clock, *more)

        if stage == 1:
            return CachedRuns(KeptAnswers(bounds), link, info, clock, inside, outcomes)
        return TellingRuns(link, info, stage, inside, outcomes)

    return made


class CachedRuns(AroundRuns):
    """See the module. clock: of the deliveries."""

    def __init__(
        self,
        answers: KeptAnswers,
        link: Link,
        info: ModelInfo,
        clock: Callable[[], float],
        inside: Callable[[Outcomes], StageRuns],
        outcomes: Outcomes,
    ) -> None:
        super().__init__(inside, outcomes)
        self.answers = answers
        self._link = link
        self._info = info
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._leading: dict[str, _Leading] = {}  # by request
        self._by_key: dict[bytes, _Leading] = {}
        self._joined: dict[str, tuple[_Leading, Job]] = {}  # by request
        self._copies = "" if info.last == 1 else link.expect(self._heard)

    @property
    def waiting(self) -> int:
        return super().waiting + len(self._joined)

    # --- in -------------------------------------------------------------------------

    def take(self, delivery: Delivery) -> None:
        features, counters = delivery.features, self.answers.counters
        weights = self.model.weights_version
        key = None
        if not (features.session or features.shadow or features.weights > weights):
            began = self._clock()
            key = key_of(features.tensors)
        if key is None:
            counters.passed += 1
            self._inside.take(delivery)
            return
        answer = self.answers.recall(key, began)
        if answer is not None:
            job = self._job(delivery, began)
            self._answer(job, answer, began - answer.at)
            return
        # What is asked again shall not wait for its own first try, which may be lost.
        is_first = features.attempt == 1 and delivery.times_delivered == 1
        before = self._by_key.get(key)
        if before is not None and is_first and self._may_join(features.id, before, weights):
            self._join(delivery, before, began)
            return
        counters.misses += 1
        if before is None and features.id not in self._leading:
            self._lead(features.id, key, weights, features.budget_us / 1e6)
        self._inside.take(delivery)

    def _may_join(self, request: str, before: _Leading, weights: int) -> bool:
        known = request in self._leading or request in self._joined
        return not known and before.weights == weights and len(self._joined) < MOST_JOINED

    @staticmethod
    def _job(delivery: Delivery, now: float) -> Job:
        job = Job.of(delivery)
        job.started, job.is_whole_answer = now, True
        return job

    def _lead(self, request: str, key: bytes, weights: int, budget: float) -> None:
        if len(self._leading) >= MOST_LEADING:
            return
        leading = _Leading(request, key, weights)
        leading.ends = self._loop.call_later(budget, self._failed, leading)
        self._leading[request] = self._by_key[key] = leading

    def _join(self, delivery: Delivery, before: _Leading, now: float) -> None:
        job = self._job(delivery, now)
        delivery.release_credit()  # for requests that are computed
        wait = max(0.0, (job.expires - now) * JOINED_SHARE)
        before.joined[job] = self._loop.call_later(wait, self._alone, before, job)
        self._joined[job.features.id] = before, job

    def _leave(self, leading: _Leading, job: Job) -> None:
        """The request waits no more."""
        leading.joined.pop(job).cancel()
        del self._joined[job.features.id]

    def _alone(self, leading: _Leading, job: Job) -> None:
        """Compute a request that has waited in vain."""
        self._leave(leading, job)
        if job.delivery.ended:
            return
        self.answers.counters.misses += 1
        job.delivery.take_credit()
        self._inside.take(job.delivery)

    # --- out --------------------------------------------------------------------------

    def _answer(self, job: Job, answer: KeptAnswer, age: float) -> None:
        now = self._clock()
        job.queue_us = int((job.started - job.arrived + job.age) * 1e6)
        tell_hop(job, **answer.told, **{CACHED: round(max(0.0, age) * 1e3, 3)})
        outputs = dict(answer.outputs)
        self._outcomes.computed(job, outputs, now - job.started, 1, answer.weights)

    def computed(
        self, job: Job, outputs: dict[str, np.ndarray], seconds: float, batch: int, weights: int
    ) -> None:
        leading = self._leading.get(job.features.id)
        if leading is not None:
            leading.told = dict(job.told or {})
        # What is unfamiliar to the model says so to whom it answers alone, and is not kept.
        alone = job.told is not None and score_of([job.told]) > 1
        if leading is None or alone or not job.delivery.intact():
            super().computed(job, outputs, seconds, batch, weights)
            if leading is not None:
                self._failed(leading)
        elif self._copies:
            tell_hop(job, **{COPY_TO: self._copies})
            super().computed(job, outputs, seconds, batch, weights)
        else:
            super().computed(job, outputs, seconds, batch, weights)
            self._landed(leading, outputs, weights)

    def stayed_behind(self, job: Job, weights: int) -> None:
        super().stayed_behind(job, weights)
        self._failed(self._leading.get(job.features.id))

    def not_computed(self, job: Job, status: Status, reason: str, retry_after: float = 0.0) -> None:
        take_out(job.features)
        super().not_computed(job, status, reason, retry_after)
        self._failed(self._leading.get(job.features.id))

    def cancelled(self, job: Job) -> None:
        super().cancelled(job)
        self._failed(self._leading.get(job.features.id))

    def _heard(self, message: LinkMessage) -> None:
        """The last stage has answered a request, or a later stage has failed it."""
        try:
            result = Result.decode(message.data)
        except DecodeError:
            return
        leading = self._leading.get(result.id)
        if leading is None:
            return
        if result.status is Status.OK:
            self._landed(leading, result.outputs, self._weights_of(result.hops))
        else:
            self._failed(leading)

    def _weights_of(self, hops: tuple[Hop, ...]) -> int:
        """Those that all stages computed with."""
        found = {hop.stage: hop.weights for hop in hops if hop.stage > 0}
        whole = found.keys() >= {stage.stage for stage in self._info.stages}
        return found[1] if whole and len(set(found.values())) == 1 else MIXED

    def _landed(self, leading: _Leading, outputs: Mapping[str, np.ndarray], weights: int) -> None:
        """A request was answered; so are those that wait for it."""
        of = max(weights, leading.weights)
        answer = KeptAnswer(own_copy(outputs), self._clock(), of, leading.told)
        joined = list(leading.joined)
        self._end(leading)
        # Else the weights have changed meanwhile.
        if weights == leading.weights == self.model.weights_version:
            self.answers.keep(leading.key, answer)
        self.answers.counters.joined += len(joined)
        for job in joined:
            if not job.delivery.ended:
                job.delivery.take_credit()
                self._answer(job, answer, 0.0)

    def _failed(self, leading: _Leading | None) -> None:
        """A request will not be answered, as far as is known: those that wait for it are computed,
        each by itself, so that none pays for another one's fault."""
        if leading is None:
            return
        joined = list(leading.joined)
        for job in joined:
            self._leave(leading, job)
        self._end(leading)
        self.answers.counters.misses += len(joined)
        for job in joined:
            if not job.delivery.ended:
                job.delivery.take_credit()
                self._inside.take(job.delivery)

    def _end(self, leading: _Leading) -> None:
        for job in list(leading.joined):
            self._leave(leading, job)
        if leading.ends is not None:
            leading.ends.cancel()
        self._leading.pop(leading.id, None)
        if self._by_key.get(leading.key) is leading:
            del self._by_key[leading.key]

    # --- life ---------------------------------------------------------------------------

    def use(self, model: StageModel) -> None:
        if model.weights_version != self.model.weights_version:
            self.answers.clear()
        super().use(model)

    def cancel(self, request_id: str, now: float) -> None:
        if request_id in self._joined:
            leading, job = self._joined[request_id]
            self._leave(leading, job)
            self._outcomes.cancelled(job)
        super().cancel(request_id, now)
        self._failed(self._leading.get(request_id))

    def take_all_waiting(self) -> list[Job]:
        joined = [job for _, job in self._joined.values()]
        self._forget()
        return super().take_all_waiting() + joined

    def abandon(self) -> None:
        self._forget()
        super().abandon()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closed)
        super().close()

    def _closed(self) -> None:
        self._forget()
        self.answers.clear()
        if self._copies:
            self._link.forget(self._copies)

    def _forget(self) -> None:
        """Nobody waits any more."""
        for leading in list(self._leading.values()):
            self._end(leading)
