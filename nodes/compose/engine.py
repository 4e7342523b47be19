"""Runs compositions in the place of a stage's runs: many at once, for each waits for others.

It has the interface of `nodes.stage.compute.Compute`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nodes.compose.asking import PartsAsked
from nodes.compose.model import MOST_RUNS, CompositionModel
from nodes.compose.telling import AskedParts, told
from nodes.stage.compute import MOST_DOUBTED, Outcomes, StageOptions
from nodes.stage.counters import StageStats
from nodes.stage.endless import OnLoop
from nodes.stage.jobs import Job
from shards.compose.errors import CompositionError
from shards.compose.run import NotAnswered, PartRun, WrongAnswer, run
from shards.errors import InputError
from swarm.errors import Status, SwarmError
from swarm.flow.recent import RecentIds
from swarm.transport.api import Delivery

MOST_WAITING = 256  # requests behind those that run

log = logging.getLogger("swarm.compose")


class CompositionRuns:
    """asked: asks the models. The rest is as of `Compute`."""

    def __init__(
        self,
        asked: PartsAsked,
        stage: int,
        model: CompositionModel,
        options: StageOptions,
        stats: StageStats,
        outcomes: Outcomes,
        clock: Callable[[], float],
        *_: object,
    ) -> None:
        self.model = model
        self.on_loop = OnLoop()
        self._asked = asked
        asked.on_stall = self._begin_what_may
        self._stats = stats
        self._outcomes = outcomes
        self._clock = clock
        self._queue: deque[Job] = deque()
        self._running: dict[Job, asyncio.Task[None]] = {}
        self._measured: set[Job] = set()  # their age in the lane is not known yet
        self._cancelled = RecentIds()  # requests whose messages may come later

    @property
    def waiting(self) -> int:
        """Requests that wait for a run."""
        return len(self._queue)

    @property
    def running_since(self) -> float:
        """No run of a composition keeps a thread: 0.0."""
        return 0.0

    def take(self, delivery: Delivery) -> None:
        """Run it, or let it wait."""
        job = Job.of(delivery)
        if job.features.id in self._cancelled:
            self._outcomes.cancelled(job)
            return
        try:
            self.model.check(job.inputs)
        except InputError as error:
            self._outcomes.not_computed(job, Status.INVALID_ARGUMENT, error.got)
            return
        if job.is_sure:
            self._admit(job)
            return
        # It may be too late already: what nobody waits for is not run.
        if len(self._measured) < MOST_DOUBTED:
            delivery.release_credit()  # so that the next ones come meanwhile
        self._measured.add(job)
        delivery.measure_age(partial(self._was_measured, job))

    def _was_measured(self, job: Job) -> None:
        if job in self._measured:  # neither cancelled nor given back
            self._measured.discard(job)
            job.take_as_new()
            job.delivery.take_credit()
            self._admit(job)

    def _admit(self, job: Job) -> None:
        if len(self._queue) >= MOST_WAITING:
            text = f"{MOST_WAITING} requests wait for composition {self.model.info.model} already"
            seconds = self._stats.compute.ewma * MOST_WAITING / MOST_RUNS
            self._outcomes.not_computed(job, Status.RESOURCE_EXHAUSTED, text, seconds)
            return
        self._queue.append(job)
        self._begin_what_may()

    def _begin_what_may(self) -> None:
        while self._queue and len(self._running) - self._asked.stalled < MOST_RUNS:
            job = self._queue.popleft()
            if self._clock() >= job.expires:
                self._too_late(job)
                continue
            job.started = self._clock()
            job.queue_us = int((job.started - job.arrived + job.age) * 1e6)
            task = asyncio.create_task(self._run(job), name=f"composition {job.features.id}")
            self._running[job] = task
            task.add_done_callback(partial(self._ended, job))

    def _ended(self, job: Job, task: asyncio.Task[None]) -> None:
        self._running.pop(job, None)
        self._begin_what_may()

    async def _run(self, job: Job) -> None:
        features = job.features
        asked = AskedParts(features.traceparent, self._asked.sends_spans)
        referred = self._asked.referred()
        parts: dict[str, PartRun] = {}
        try:
            async with asyncio.timeout(job.expires - self._clock()):
                made = await run(
                    self.model.composition,
                    self.model.signatures,
                    job.inputs,
                    self._asked.of(features, job.expires, asked, referred),
                    parts,
                )
        except TimeoutError:
            self._tell(job, asked, parts)
            self._too_late(job, [name for name, part in parts.items() if not part.ended])
        except Exception as error:
            self._tell(job, asked, parts)
            job.is_own_fault = True  # others may need other parts, or ask for what can be done
            self._outcomes.not_computed(job, self._status_of(error), str(error) or repr(error))
        else:
            self._asked.learn(parts)
            self._tell(job, asked, parts)
            job.steps = made.made
            seconds = self._clock() - job.started
            self._outcomes.computed(job, made.outputs, seconds, 1, 0)
        finally:
            referred.end()

    def _tell(self, job: Job, asked: AskedParts, parts: dict[str, PartRun]) -> None:
        """What the hop says of the parts, of a run that failed too."""
        job.told = told(parts) | asked.cached() | asked.unfamiliar() | asked.weights()
        if asked.is_traced:
            job.told |= asked.told(self.model.composition, parts, job.started)

    def _status_of(self, error: Exception) -> Status:
        match error:
            case WrongAnswer():
                return Status.INTERNAL
            case NotAnswered():
                cause = error.__cause__
                return cause.status if isinstance(cause, SwarmError) else Status.UNAVAILABLE
            case CompositionError():
                return Status.INVALID_ARGUMENT
        log.exception("a run of %s failed", self.model.info.model, exc_info=error)
        return Status.INTERNAL

    def _too_late(self, job: Job, unfinished: Sequence[str] = ()) -> None:
        """unfinished: parts that had begun."""
        self._stats.counters.expired += 1
        text = f"the budget ended in composition {self.model.info.model}"
        if unfinished:
            text += f", in part {', '.join(map(repr, unfinished))}"
        self._outcomes.not_computed(job, Status.DEADLINE_EXCEEDED, text)

    def cancel(self, request_id: str, now: float) -> None:
        """Nobody waits for this request: neither for what it has asked for."""
        self._cancelled.add(request_id, now)
        for waiting in (self._queue, self._measured):
            for job in [job for job in waiting if job.features.id == request_id]:
                waiting.remove(job)
                self._outcomes.cancelled(job)
        for job, task in list(self._running.items()):
            if job.features.id == request_id and not task.done():
                task.cancel()
                self._outcomes.cancelled(job)

    def take_all_waiting(self) -> list[Job]:
        """The jobs that wait; they are not run."""
        taken = [*self._queue, *self._measured]
        self._queue.clear()
        self._measured.clear()
        return taken

    def abandon(self) -> None:
        """Give up on all jobs: their deliveries are given back by the caller."""
        self._queue.clear()
        self._measured.clear()
        for task in self._running.values():
            task.cancel()

    def use(self, model: Any) -> None:
        """A composition has no weights."""

    def restart(self) -> None:
        """There is no thread."""

    def end_runs(self) -> None:
        """A budget ends each run."""

    def close(self) -> None:
        """There is no thread."""
