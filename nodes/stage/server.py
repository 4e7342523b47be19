"""One stage on one node: from a lane, through the runtime, to the next lane or the requester.

The way of a request, all of it in callbacks (no task and no await per message):

    lane ─► _delivered ─► decode, budget ─► queue ─► _dispatch ─► worker or inline ─► _computed
         ─► to the next lane, stored (PubAck), or to its node, done ─► ack, which asks for the next
         ─► or, in the last stage, the answer to the requester, then ack
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import numpy as np

from nodes.stage.intake import OVERTAKEN, Intake, take_in
from nodes.stage.jobs import IDLE_RUNS, Job, StageModel, StageOptions
from nodes.stage.outbox import Outbox
from nodes.stage.recent import Recent
from nodes.stage.waiting import Waiting
from nodes.stage.worker import Worker
from shards.errors import InputError, RunTerminated, ShardsError
from shards.runtimes.runtime import CancelToken
from swarm.errors import DecodeError, Status
from swarm.flow.batching import split_on_failure
from swarm.flow.bucket import Quotas
from swarm.flow.budget import should_start
from swarm.lanes import Delivery, FreshDelivery, Lane
from swarm.link import Link
from swarm.local.compact import decode_features
from swarm.local.lending import Lender
from swarm.shm import ShmError
from swarm.wire.messages import Features
from swarm.wire.tensors import Claimed

log = logging.getLogger("swarm.stage")

# A message handed out so often has probably ended the nodes that got it. Not fewer: a hung node
# may get it once an ack_wait (0.06 s) for as long as what it had asked for stands (1 s); on starved
# devices a healthy one is handed out several times; and its budget ends a deadly one too.
DEADLY_DELIVERIES = 32
# Requests in hand, and seconds of work that waits here or in the lanes, up to which more is taken
# from this host. (Each sender hands over a second of work at most, but there may be many.)
HANDED, AT_HAND = 256, 1.0
FRESH_QUEUE = 64  # requests that may wait on a node in fast mode


class StageServer:
    """Serves one stage of a model version; `lanes` are its sources, `out` takes what leaves."""

    def __init__(
        self,
        link: Link,
        model: StageModel,
        out: Outbox,
        options: StageOptions | None = None,
        claims: Lender | None = None,
    ) -> None:
        self.info, self.stage, self.stats = out.info, out.stage, out.stats
        self.model = model
        self.out = out
        self.lanes: list[Lane] = []
        self.worker: Worker | None = None
        self._link = link
        self._options = options or StageOptions()
        self._claims = claims
        self._loop = asyncio.get_running_loop()
        self._waiting = Waiting(self._options, model.batchable, self._dispatch)
        self._known: tuple[dict[str, np.ndarray], dict[str, np.ndarray]] | None = None
        rate = self._options.quota if self.stage == 1 else 0.0
        self._quotas = Quotas(rate, max(1.0, rate / 4)) if rate > 0 else None
        self._suspended = self._stopping = False
        self.intake = Intake(out, claims, self._busy, self._accept)
        link.on_down.append(self.intake.clear)
        self._cancelled = Recent()  # requests
        # Messages of fast mode: two groups may cover the stage before, and both pass one on.
        self._came_fresh = Recent()
        self._running: dict[CancelToken, list[Job]] = {}
        self._ended = 0.0  # the last run
        self._blocking: tuple[float, CancelToken] | None = None  # a run on the loop: its end
        self._inline = model.compute_ms / 1e3 < self._options.inline_below
        if not self._inline:
            self.worker = Worker(self._loop, f"stage-{self.stage}")

    @property
    def queued(self) -> int:
        """Requests in hand on this node."""
        return sum([len(lane.held) for lane in self.lanes]) + len(self.intake)

    @property
    def waiting(self) -> int:
        """Messages waiting in the stage's lanes, as last seen."""
        return sum([lane.pending for lane in self.lanes])

    # --- in -------------------------------------------------------------------------

    def delivered(self, delivery: Delivery | FreshDelivery) -> None:
        """A lane's callback: decode, check the budget, queue."""
        counters = self.stats.counters
        if delivery.delivered > 1:
            counters.redelivered += 1
        try:
            features = decode_features(delivery.data)
        except DecodeError as error:
            self.out.bury(delivery, f"undecodable: {error}")
            return
        if self._suspended:
            self._give_back(delivery, features)
            return
        if not isinstance(delivery, FreshDelivery) and self.intake.joined(delivery, features):
            return
        if delivery.delivered >= DEADLY_DELIVERIES:
            text = f"handed out {delivery.delivered} times without an end"
            self.out.fail(delivery, features, Status.INTERNAL, text, settle=False)
            self.out.bury(delivery, text)
            return
        if not self.out.serves(features):
            text = f"sent for {features.model}@{features.version} stage {features.stage}"
            self.out.fail(delivery, features, Status.INVALID_ARGUMENT, text)
            return
        if delivery.fresh and not self._came_fresh.first(features.message_id):
            return
        if delivery.fresh and len(self._waiting) >= FRESH_QUEUE:
            # No lane bounds fast mode: this does.
            counters.refused += 1
            self.out.fail(delivery, features, Status.RESOURCE_EXHAUSTED, f"{FRESH_QUEUE} wait here")
            return
        now = delivery.received / 1e9
        first = delivery.delivered == 1  # a redelivery was counted already
        if self._quotas is not None and first and not self._quotas.admit(features.agent, now):
            counters.refused += 1
            text = f"agent {features.agent!r} sends more than {self._options.quota:g} requests/s"
            self.out.fail(delivery, features, Status.RESOURCE_EXHAUSTED, text)
            return
        job = Job.of(delivery, features)
        if Claimed in map(type, features.tensors.values()):
            self._borrow(job)
        else:
            self._accept(job)

    def _borrow(self, job: Job) -> None:
        """Map the tensors that came as claims."""
        claims = self._claims
        if claims is None:
            self.out.fail_job(job, Status.UNAVAILABLE, "this node has no shared memory")
            return
        try:
            job.opened = claims.open(job.features.tensors)
        except ShmError as error:
            # Only the requester can send the bytes again.
            self.out.fail(job.delivery, job.features, Status.UNAVAILABLE, str(error))
            return
        except DecodeError as error:
            self.out.bury(job.delivery, str(error))
            return
        self._accept(job)

    def _accept(self, job: Job) -> None:
        """Check the tensors; then run at once, or queue for the worker."""
        if self._cancelled and job.features.id in self._cancelled:
            self.out.drop(job)
            return
        if self._inline:
            self._run_inline(job)  # which checks them itself
            return
        self._waiting.arrived(job.arrived)
        if self._alone(job):
            self._run_inline(job)
            return
        try:
            self.model.check(job.features.tensors)
        except InputError as error:
            self.out.fail_job(job, Status.INVALID_ARGUMENT, str(error))
            return
        if self.model.batchable:
            job.shape = tuple(a.shape[1:] for a in job.features.tensors.values())
        self._waiting.add(job)
        self._dispatch()

    def _alone(self, job: Job) -> bool:
        """Whether a run may block the loop: it is short, and little else comes."""
        # The time at the start says little where all nodes of a host start at once.
        usual = self.stats.compute.ewma or self.model.compute_ms / 1e3
        if usual >= self._options.inline_alone_below or self._waiting:
            return False
        busy = self.worker is not None and self.worker.queued > 0
        return not busy and job.arrived - self._ended > IDLE_RUNS * usual

    def _busy(self) -> bool:
        """Whether nothing is taken from this host's processes. It may wait here, but not overtake
        what waits in a lane, which is taken in first; and it is lanes that are counted against
        quotas."""
        if self._suspended or self._stopping or not self._link.connected:
            return True
        if self._quotas is not None:
            return True
        waits, run = self.waiting, self.stats.compute.ewma
        if self.queued + waits >= HANDED or (len(self._waiting) + waits) * run > AT_HAND:
            return True
        return waits * run > OVERTAKEN and not take_in(self.lanes, run)

    def _expired(self, job: Job, now: float) -> bool:
        """Answer what cannot be answered in time any more; True when it was so."""
        remaining = job.expires - now
        usual = self.stats.compute.ewma if self._options.start_check else 0.0
        if should_start(remaining, usual, self._options.start_check):
            return False
        self.stats.counters.expired += 1
        text = (
            f"the budget ended before stage {self.stage}: most of it, {job.most_spent(self.stage)}"
        )
        self.out.fail_job(job, Status.DEADLINE_EXCEEDED, text)
        return True

    # --- compute --------------------------------------------------------------------

    def _run_inline(self, job: Job) -> None:
        started = time.monotonic()
        if self._expired(job, started):
            return
        token = None
        if not self._inline:
            token = CancelToken()
            self._blocking = (job.expires, token)
        try:
            result = self.model.run(job.features.tensors, token)
        except InputError as error:
            self.out.fail_job(job, Status.INVALID_ARGUMENT, str(error))
            return
        except Exception as error:
            self._computed([job], None, error, 0.0)
            return
        finally:
            self._blocking = None
        job.queue_us = int((started - job.arrived + job.age) * 1e6)
        self._ended = time.monotonic()
        self.out.sent(job, result, self._ended - started, 1)

    def end_overdue(self, now: float) -> None:
        """Called by a thread, since such a run blocks the loop: end it when its budget is over."""
        blocking = self._blocking
        if blocking is not None and now > blocking[0]:
            blocking[1].cancel()

    def _dispatch(self) -> None:
        """Start a run if the worker is free and waiting for company does not pay."""
        worker = self.worker
        while worker is not None and not worker.queued:
            taken = self._waiting.take(self.stats.compute.ewma)
            if not taken:
                return
            now = time.monotonic()
            batch = [job for job in taken if not self._expired(job, now)]
            for job in batch:
                job.queue_us = int((now - job.arrived + job.age) * 1e6)
            if batch:
                self._start(batch, now)

    def _start(self, batch: list[Job], now: float) -> None:
        assert self.worker is not None
        token = CancelToken()
        self._running[token] = batch
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
            self._ended = time.monotonic()
            self._running.pop(token, None)
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
            self._waiting.limit.ran(len(batch), seconds)
            self.stats.counters.batches += 1
            for job, result in zip(batch, results, strict=True):
                self.out.sent(job, result, seconds, len(batch))
            return
        if isinstance(error, RunTerminated):
            for job in batch:
                if job.features.id in self._cancelled:
                    self.out.drop(job)
                    continue
                self.stats.counters.expired += 1
                text = f"the budget ended during the run of stage {self.stage}"
                self.out.fail_job(job, Status.DEADLINE_EXCEEDED, text)
            return
        halves = split_on_failure(batch)
        if halves is not None and self.worker is not None:
            # One member may be poison: the others must not fail with it.
            for half in halves:
                self._start(list(half), time.monotonic())
            return
        for job in batch:
            self.out.fail_job(job, Status.INTERNAL, f"{error}")

    def cancel(self, request_id: str) -> None:
        """Nobody waits for this request: do not compute it, here or when it comes again."""
        self._cancelled.add(request_id)
        for job in self._waiting.take_out(request_id):
            self.out.drop(job)
        for token, batch in self._running.items():
            if all(job.features.id in self._cancelled for job in batch):
                token.cancel()

    # --- trouble ----------------------------------------------------------------------

    def suspend(self) -> None:
        """Give back all that is in hand, and give up on a run that hangs."""
        self._suspended = True
        self.intake.give_back()
        for lane in self.lanes:
            lane.pause()
            for delivery in list(lane.held.values()):
                delivery.nak()
        self._waiting.take_all()
        self._running.clear()
        if self.worker is not None:
            self.worker.abandon()

    def _give_back(self, delivery: Delivery | FreshDelivery, features: Features) -> None:
        """Suspended: pulls that were parked before still bring messages for a moment."""
        if delivery.fresh:
            self.out.fail(delivery, features, Status.UNAVAILABLE, "this stage is being restarted")
            return
        for lane in self.lanes:
            lane.pause()  # one that was opened since would pull it again at once
        delivery.nak()

    def resume(self) -> None:
        """Serve again, with a fresh thread."""
        self._suspended = False
        if not self._inline:
            self.worker = Worker(self._loop, f"stage-{self.stage}")
        for lane in self.lanes:
            lane.resume()

    def self_test(self) -> bool:
        """Whether a run on known input still gives what it gave at the start."""
        if self._known is None:
            return True
        inputs, expected = self._known
        try:
            outputs = self.model.run(inputs)
        except ShardsError as error:
            log.error("stage %d: the self-test failed: %s", self.stage, error)
            return False
        return all(np.array_equal(outputs[name], value) for name, value in expected.items())

    def learn_known(self, inputs: dict[str, np.ndarray]) -> None:
        """Take the present answer to `inputs` as what later self-tests compare with."""
        try:
            self._known = (inputs, self.model.run(inputs))
        except ShardsError as error:
            # Some models take no synthetic input (an index out of range): no later self-test.
            log.info("stage %d: no self-tests while serving: %s", self.stage, error)

    # --- end ------------------------------------------------------------------------

    async def drain(self, timeout: float = 5.0) -> None:
        """Stop asking, give back what is queued, finish what runs."""
        self._stopping = True
        await asyncio.gather(*(lane.drain() for lane in self.lanes))
        for job in self._waiting.take_all():
            job.delivery.nak()
        deadline = time.monotonic() + timeout
        while self.queued and self._link.connected and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.002)  # once, at the end of a life
        self.out.close()
        self._link.on_down.remove(self.intake.clear)

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()
