"""One stage on one node: from a lane, through the runtime, to the next lane or the requester.

The way of a request, all of it in callbacks (no task and no await per message):

    lane ─► _delivered ─► decode, budget ─► queue ─► _dispatch ─► worker or inline ─► _computed
         ─► publish to the next lane ─► _stored (PubAck) ─► ack, which asks for the next
         ─► or, in the last stage, the answer to the requester, then ack
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from nodes.counters import StageStats
from nodes.worker import Worker
from shards.errors import InputError, RunTerminated, ShardsError
from shards.runtime import CancelToken
from swarm.errors import (
    DecodeError,
    NotConnected,
    ResourceExhausted,
    Status,
    SwarmError,
)
from swarm.flow.batching import ArrivalRate, BatchLimit, Group, Run, decide, split_on_failure
from swarm.flow.budget import should_start
from swarm.lanes import Delivery, Lane, Publisher
from swarm.link import Link
from swarm.messages import Features, Result, failure, result_parts
from swarm.model import ModelInfo
from swarm.subjects import ANY, Subjects

log = logging.getLogger("swarm.stage")

# Runs shorter than this are done on the event loop: handing over to a thread and back costs
# 60-120 us here, more than the run itself. Longer ones never are.
INLINE_BELOW = 0.0003  # seconds
DEADLY_DELIVERIES = 6  # a message handed out so often has probably ended the nodes that got it
RETRY_FULL_LANE = 0.004  # seconds between attempts while the next lane is full


class StageModel(Protocol):
    """What a stage needs of a loaded shard (`shards.load.StageRuntime`)."""

    batchable: bool
    compute_ms: float

    def check(self, tensors: Any) -> None: ...
    def run(self, tensors: Any, cancel: CancelToken | None = None) -> dict[str, np.ndarray]: ...
    def run_batch(
        self, requests: Any, cancel: CancelToken | None = None
    ) -> list[dict[str, np.ndarray]]: ...


@dataclass(slots=True)
class StageOptions:
    """max_batch: requests in one run. max_wait: seconds a request may wait for company.
    start_check: do not start what cannot finish inside its budget."""

    max_batch: int = 4
    max_wait: float = 0.0005
    start_check: bool = True
    inline_below: float = INLINE_BELOW


@dataclass(slots=True)
class Job:
    """A request in hand: its delivery, its features, and what it has cost so far."""

    delivery: Delivery
    features: Features
    expires: float  # time.monotonic() when its budget ends
    arrived: float
    age: float  # seconds in the lane before it arrived
    queue_us: int = 0
    shape: tuple[Any, ...] = field(default=())


class StageServer:
    """Serves one stage of one model version; `lanes` are its sources."""

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        publisher: Publisher,
        info: ModelInfo,
        stage: int,
        node: str,
        model: StageModel,
        options: StageOptions | None = None,
    ) -> None:
        self.info = info
        self.stage = stage
        self.model = model
        self.stats = StageStats()
        self.lanes: list[Lane] = []
        self.worker: Worker | None = None
        self.next_lane = ANY
        self._link = link
        self._subjects = subjects
        self._publisher = publisher
        self._node = node
        self._options = options or StageOptions()
        self._last = stage == info.last
        self._next = (
            "" if self._last else subjects.features(info.model, info.version, stage + 1, ANY)
        )
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Job] = deque()
        self._arrivals = ArrivalRate()
        self._limit = BatchLimit(largest=self._options.max_batch, start=self._options.max_batch)
        self._timer: asyncio.TimerHandle | None = None
        self._inline = model.compute_ms / 1e3 < self._options.inline_below
        if not self._inline:
            self.worker = Worker(self._loop, f"stage-{stage}")

    @property
    def queued(self) -> int:
        """Requests in hand on this node."""
        return sum(len(lane.held) for lane in self.lanes)

    @property
    def waiting(self) -> int:
        """Messages waiting in the stage's lanes, as last seen."""
        return sum(lane.pending for lane in self.lanes)

    # --- in -------------------------------------------------------------------------

    def delivered(self, delivery: Delivery) -> None:
        """A lane's callback: decode, check the budget, queue."""
        now = delivery.received / 1e9
        counters = self.stats.counters
        if delivery.delivered > 1:
            counters.redelivered += 1
        try:
            features = Features.decode(delivery.data)
        except DecodeError as error:
            self._bury(delivery, f"undecodable: {error}")
            return
        if delivery.delivered >= DEADLY_DELIVERIES:
            text = f"handed out {delivery.delivered} times without an end"
            self._fail(delivery, features, Status.INTERNAL, text)
            self._bury(delivery, text)
            return
        lane = delivery._lane
        age = lane.clock.age(delivery.stored, delivery.received) / 1e9
        job = Job(delivery, features, now + features.budget_us / 1e6 - age, now, age)
        if (features.model, features.version, features.stage) != (
            self.info.model,
            self.info.version,
            self.stage,
        ):
            text = f"sent for {features.model}@{features.version} stage {features.stage}"
            self._fail(delivery, features, Status.INVALID_ARGUMENT, text)
            return
        try:
            # Shared memory claims become arrays here, in a later step of the lane.
            self.model.check(features.tensors)
        except InputError as error:
            self._fail(delivery, features, Status.INVALID_ARGUMENT, str(error))
            return
        if self._inline:
            self._run_inline(job)
            return
        if self.model.batchable:
            job.shape = tuple(a.shape[1:] for a in features.tensors.values())
        self._arrivals.add(now)
        self._queue.append(job)
        self._dispatch()

    def _expired(self, job: Job, now: float) -> bool:
        """Answer what cannot be answered in time any more; True when it was so."""
        remaining = job.expires - now
        usual = self.stats.compute.ewma if self._options.start_check else 0.0
        if should_start(remaining, usual, self._options.start_check):
            return False
        self.stats.counters.expired += 1
        spent = f"{job.age * 1e3:.1f} ms in the lane of stage {self.stage}"
        slowest = max(
            (h for h in job.features.hops if isinstance(h, dict)),
            key=lambda h: h.get("queue_us", 0) + h.get("compute_us", 0),
            default=None,
        )
        if slowest is not None:
            total = (slowest.get("queue_us", 0) + slowest.get("compute_us", 0)) / 1e3
            if total > job.age * 1e3:
                spent = f"{total:.1f} ms in stage {slowest.get('stage')}"
        self._fail(
            job.delivery,
            job.features,
            Status.DEADLINE_EXCEEDED,
            f"the budget ended before stage {self.stage}: most of it, {spent}",
        )
        return True

    # --- compute --------------------------------------------------------------------

    def _run_inline(self, job: Job) -> None:
        started = time.monotonic()
        if self._expired(job, started):
            return
        try:
            result = self.model.run(job.features.tensors)
        except ShardsError as error:
            self._computed([job], None, error, 0.0)
            return
        job.queue_us = int((started - job.arrived + job.age) * 1e6)
        self._sent(job, result, time.monotonic() - started, 1)

    def _dispatch(self) -> None:
        """Start a run if the worker is free and waiting for company does not pay."""
        worker = self.worker
        if worker is None or worker.queued or not self._queue:
            return
        now = time.monotonic()
        size = 1
        if self._options.max_batch > 1 and self.model.batchable:
            size = self._batch_size(now)
            if size == 0:
                return
        batch: list[Job] = []
        shape = self._queue[0].shape
        while self._queue and len(batch) < size and self._queue[0].shape == shape:
            job = self._queue.popleft()
            if not self._expired(job, now):
                job.queue_us = int((now - job.arrived + job.age) * 1e6)
                batch.append(job)
        if batch:
            self._start(batch, now)
        elif self._queue:
            self._dispatch()

    def _batch_size(self, now: float) -> int:
        """How many to run now; 0: wait for company, a timer is set."""
        decision = decide(
            [Group(self._queue[0].shape, len(self._queue), self._queue[0].arrived)],
            1,
            now,
            max_batch=max(1, self._limit.size),
            max_wait_s=self._options.max_wait,
            arrivals_per_s=self._arrivals.per_s(now),
            run_s=self.stats.compute.ewma,
        )
        if isinstance(decision, Run):
            return decision.size
        if self._timer is None:
            delay = max(0.0, min(decision.until - now, self._options.max_wait))
            self._timer = self._loop.call_later(delay, self._timeout)
        return 0

    def _timeout(self) -> None:
        self._timer = None
        self._dispatch()

    def _start(self, batch: list[Job], now: float) -> None:
        assert self.worker is not None
        token = CancelToken()
        # A run is ended when nobody in it has any budget left.
        latest = max(job.expires for job in batch)
        timer = self._loop.call_later(max(0.0, latest - now), token.cancel)
        tensors = [job.features.tensors for job in batch]

        def work() -> list[dict[str, np.ndarray]]:
            if len(tensors) == 1:
                return [self.model.run(tensors[0], token)]
            return self.model.run_batch(tensors, token)

        def done(results: Any, error: Exception | None, seconds: float) -> None:
            timer.cancel()
            self._computed(batch, results, error, seconds)
            self._dispatch()

        self.worker.submit(work, done)

    def _computed(
        self,
        batch: list[Job],
        results: list[dict[str, np.ndarray]] | None,
        error: Exception | None,
        seconds: float,
    ) -> None:
        if error is None and results is not None:
            self._limit.ran(len(batch), seconds)
            self.stats.counters.batches += 1
            for job, result in zip(batch, results, strict=True):
                self._sent(job, result, seconds, len(batch))
            return
        if isinstance(error, RunTerminated):
            for job in batch:
                self.stats.counters.expired += 1
                text = f"the budget ended during the run of stage {self.stage}"
                self._fail(job.delivery, job.features, Status.DEADLINE_EXCEEDED, text)
            return
        halves = split_on_failure(batch)
        if halves is not None and self.worker is not None:
            # One member may be poison: the others must not fail with it.
            for half in halves:
                self._start(list(half), time.monotonic())
            return
        for job in batch:
            self._fail(job.delivery, job.features, Status.INTERNAL, f"{error}")

    # --- out ------------------------------------------------------------------------

    def _sent(self, job: Job, result: dict[str, np.ndarray], seconds: float, batch: int) -> None:
        """Pass a result on: to the next lane, or to the requester."""
        now = time.monotonic()
        self.stats.compute.add(seconds, now)
        self.stats.queue.add(job.queue_us / 1e6, now)
        features = job.features
        features.hops.append(
            {
                "stage": self.stage,
                "node": self._node,
                "queue_us": job.queue_us,
                "compute_us": int(seconds * 1e6),
                "batch": batch,
            }
        )
        if self._last:
            self._answer(job, result)
            return
        features.stage = self.stage + 1
        features.tensors = result
        self._forward(job)

    def _answer(self, job: Job, result: dict[str, np.ndarray]) -> None:
        features = job.features
        answer = Result(
            features.id, features.model, features.version, outputs=result, attempt=features.attempt
        )
        try:
            self._link.publish(features.reply, result_parts(answer, features.hops))
        except NotConnected:
            return  # the message will be handed out again
        except SwarmError as error:
            self._fail(job.delivery, features, error.status, str(error))
            return
        # Same connection, same order: the server has the answer before it has the ack.
        self.stats.counters.served += 1
        job.delivery.ack()

    def _forward(self, job: Job) -> None:
        features = job.features
        features.budget_us = int((job.expires - time.monotonic()) * 1e6)
        try:
            self._publisher.publish(
                self._next,
                features.parts(),
                features.message_id,
                lambda error, _sequence: self._stored(job, error),
            )
        except NotConnected:
            return  # the message will be handed out again
        except SwarmError as error:
            self._fail(job.delivery, features, error.status, str(error))

    def _stored(self, job: Job, error: SwarmError | None) -> None:
        """The next lane's answer: only now is this stage's work done."""
        if error is None:
            self.stats.counters.served += 1
            job.delivery.ack()
        elif isinstance(error, ResourceExhausted):
            # Hold it: this lane fills up in turn, up to the requester, who is refused at once.
            self.stats.counters.blocked += 1
            if job.expires - time.monotonic() > RETRY_FULL_LANE:
                self._loop.call_later(RETRY_FULL_LANE, self._retry, job)
            else:
                text = f"the lane of stage {self.stage + 1} is full"
                self._fail(job.delivery, job.features, Status.RESOURCE_EXHAUSTED, text)
        elif not isinstance(error, NotConnected):
            log.info("stage %d: %s; the message goes back to its lane", self.stage, error)
            job.delivery.nak(0.05)

    def _retry(self, job: Job) -> None:
        if not job.delivery.settled:
            self._forward(job)

    def _fail(self, delivery: Delivery, features: Features, status: Status, text: str) -> None:
        """Answer with a failure, and be done with the message."""
        if status not in (Status.DEADLINE_EXCEEDED, Status.RESOURCE_EXHAUSTED):
            self.stats.counters.failed += 1
        try:
            if features.reply:
                self._link.publish(
                    features.reply, failure(features, status, text, self.stage, self._node)
                )
        except SwarmError as error:
            log.info("a failure could not be reported: %s", error)
        delivery.ack()

    def _bury(self, delivery: Delivery, reason: str) -> None:
        """Dead-letter a message that no node can serve."""
        self.stats.counters.dead_lettered += 1
        log.warning("stage %d: dead letter: %s", self.stage, reason)
        text = reason.encode("ascii", "replace")[:400].replace(b"\r", b" ").replace(b"\n", b" ")
        headers = b"NATS/1.0\r\nSwarm-Reason: %b\r\nSwarm-Stage: %d\r\n\r\n" % (text, self.stage)
        try:
            self._link.publish(
                self._subjects.dead(self.info.model), [delivery.data], headers=headers
            )
        except SwarmError as error:
            log.warning("a dead letter could not be stored: %s", error)
        delivery.term()

    # --- end ------------------------------------------------------------------------

    async def drain(self, timeout: float = 5.0) -> None:
        """Stop asking, give back what is queued, finish what runs."""
        await asyncio.gather(*(lane.drain() for lane in self.lanes))
        while self._queue:
            self._queue.popleft().delivery.nak()
        deadline = time.monotonic() + timeout
        while self.queued and self._link.connected and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.002)  # once, at the end of a life
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
