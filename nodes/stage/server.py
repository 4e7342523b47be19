"""One stage on one node: from its source, through the runtime, to the next stage or the requester.

The way of a request is all callbacks, without a task and without an await per message:

    StageSource ─► accept ─► Compute ─► computed ─┬─► StageSender of the next stage ─► safe ─► done
                     ▲                            ├─► answer (last stage) ─────────────────► done
                     └── next stage of this node ◄┘

A delivery is `done`, acknowledged or told to its sender, only when its result is safe. A node that
is a primary of the next stage too computes that one without a message between.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from nodes.audit import Audit
from nodes.stage.compute import Compute, StageModel, StageOptions, StageRuns
from nodes.stage.continued import Continued
from nodes.stage.counters import StageStats, batch_bucket
from nodes.stage.endless import OnLoop
from nodes.stage.jobs import Job
from nodes.stage.pictures import PictureReader
from nodes.stage.rules import HAND_BACK_DELAY, NOT_SENT, SENT, After, Onward, StageMove
from nodes.stage.selftest import Known, SelfTest
from swarm.errors import NotFound, ResourceExhausted, Status, SwarmError, retry_after_of
from swarm.fleet.priorities import PRIMARY
from swarm.flow.bucket import Quotas
from swarm.flow.rules import decide
from swarm.model import ModelInfo
from swarm.subjects import ANY
from swarm.tracing.anatomy import moments
from swarm.tracing.traceparent import is_sampled
from swarm.transport.api import (
    Acked,
    Backlog,
    Delivery,
    Event,
    InFlight,
    Published,
    Refused,
    Stored,
)
from swarm.transport.parcel import Parcel
from swarm.transport.referred import fetch
from swarm.transport.routes import Routes
from swarm.transport.source import SourceOptions, StageSource
from swarm.transport.stage_sender import StageSender
from swarm.wire.hops import CODEC, PRIORITIES, WEIGHTS
from swarm.wire.messages import Features
from swarm.wire.tensors import are_referred
from swarm.wire.urgency import IN_USE_FOR

log = logging.getLogger("swarm.stage")

NextLane = Callable[[ModelInfo, int, Features], str]  # by the routing policy: (version, stage, …)


# Seconds; behind a longer run caches are cold, and an acknowledgement takes 0.06 ms: answer first.
LONG_RUN = 0.001
DRAIN_LOOK_EVERY = 0.002  # seconds
# Stages of one node that short runs pass through within one turn of the event loop: each is a call
# inside the one before, and other messages wait for the turn's end.
STAGES_AT_A_TURN = 8


class StageServer:
    """Serves one stage of a model version."""

    def __init__(
        self,
        routes: Routes,
        info: ModelInfo,
        stage: int,
        node: str,
        model: StageModel,
        source: SourceOptions | None = None,
        options: StageOptions | None = None,
        next_lane: NextLane | None = None,
        known: Known | None = None,
        on_behind: Callable[[int], None] = lambda weights: None,
        audit: Audit | None = None,
        is_crowded: Callable[[], bool] = lambda: False,
        beside: Callable[[int], StageServer | None] = lambda stage: None,
        runs: Callable[..., StageRuns] = Compute,
    ) -> None:
        """known: what the model gave for known input, None where it is not tested while it serves.
        on_behind(n): a request asks for weight version n, which the model does not have.
        is_crowded(): whether the node has a request in hand beside the one that has come.
        beside(n): stage n of this version on this node, None where it is not served here.
        runs: makes what computes the requests, as `Compute` is made."""
        options = options or StageOptions()
        self.info = info
        self.stage = stage
        self.stats = StageStats()
        self._node = node
        self._link = routes.link
        self._routes = routes
        self._fetching: set[asyncio.Task[None]] = set()  # each ends within `referred.WITHIN`
        self._lender = routes.lender
        self._next_lane = next_lane
        self._on_behind = on_behind
        self._audit = audit
        self._is_crowded = is_crowded
        self._beside = beside
        self._continued: set[Continued] = set()  # in hand; their messages are an earlier stage's
        self._suspended = False
        self._loop = asyncio.get_running_loop()
        self._self_test = SelfTest(stage, known)
        rate = options.quota if stage == 1 else 0.0
        self._quota = rate
        self._quotas = Quotas(rate, max(1.0, rate)) if rate > 0 else None
        self._stopping = False
        self._priorities_until = 0.0  # some have been seen lately
        self._blocked = 0  # results that wait for room in the next lane
        self._longest_budget_us = 0  # of the requests since it was asked for last
        self._clock = routes.clock
        takes_input = stage == 1 and info.edge is None
        pictures = PictureReader(info) if takes_input and info.picture else None
        self._compute = runs(
            stage, model, options, self.stats, self, self._clock, pictures, self._self_test.proves
        )
        self._onward: StageSender | None = None
        if stage < info.last:
            self._onward = StageSender(routes, info, stage + 1, self.stats.compute)
        source = source or SourceOptions()
        self._server_clock = source.clock
        self.source = StageSource(
            routes,
            info,
            stage,
            node,
            source,
            self.stats.counters,
            self._accept,
            self._backlog,
        )

    @property
    def model(self) -> StageModel:
        """The loaded shard."""
        return self._compute.model

    @property
    def runs(self) -> StageRuns:
        """What computes its requests."""
        return self._compute

    @property
    def running_since(self) -> float:
        """`time.monotonic()` when the present run in the thread began; 0.0 while there is none."""
        return self._compute.running_since

    @property
    def queued(self) -> int:
        """Requests in hand on this node."""
        # The message of one that waits for room in the next lane may be another node's by now.
        return self.source.in_hand + sum(not each.ended for each in self._continued)

    @property
    def is_primary(self) -> bool:
        """Whether it takes requests, and before others do."""
        ready = not (self._stopping or self._suspended)
        return ready and self.source.priority == PRIMARY

    @property
    def waiting(self) -> int:
        """Messages waiting in the stage's lanes, as last seen."""
        return self.source.waiting

    def take_longest_budget(self) -> float:
        """The longest budget in seconds of the requests that came since the last call."""
        longest, self._longest_budget_us = self._longest_budget_us, 0
        return longest / 1e6

    # --- in -------------------------------------------------------------------------

    def _backlog(self) -> Backlog:
        closed = self._stopping or self._quotas is not None
        return Backlog(self._compute.waiting, self.stats.compute.ewma, closed)

    def _accept(self, delivery: Delivery) -> None:
        features = delivery.features
        if features.budget_us > self._longest_budget_us:
            self._longest_budget_us = features.budget_us
        if features.urgency:
            if not self._priorities_until:
                self.source.let_pass(self.stats.compute.ewma)
            self._priorities_until = delivery.received / 1e9 + IN_USE_FOR
        if features.shadow and self._is_crowded():
            self.stats.counters.shadows_dropped += 1
            text = "requests are served before copies of requests"
            delivery.fail(Status.RESOURCE_EXHAUSTED, text, self.stage, self._node)
            return
        first = delivery.times_delivered == 1  # a redelivery was counted already
        if self._quotas is not None and first:
            now = delivery.received / 1e9
            if not self._quotas.admit(features.agent, now):
                self.stats.counters.refused += 1
                text = f"agent {features.agent!r} sends more than {self._quota:g} requests/s"
                if self._audit is not None:
                    self._audit.failed(features, Status.RESOURCE_EXHAUSTED)
                wait = self._quotas.wait(features.agent, now)
                delivery.fail(Status.RESOURCE_EXHAUSTED, text, self.stage, self._node, wait)
                return
        if are_referred(features.tensors):
            fetching = self._loop.create_task(self._fetch(delivery), name=f"fetch {features.id}")
            self._fetching.add(fetching)
            fetching.add_done_callback(self._fetching.discard)
            return
        self._compute.take(delivery)

    async def _fetch(self, delivery: Delivery) -> None:
        """Take a request whose tensors are at another node."""
        features = delivery.features
        try:
            await fetch(self._routes, self.info, features)
            if not delivery.ended:
                self._compute.take(delivery)
        except NotFound as error:
            if self._audit is not None:
                self._audit.failed(features, error.status)
            delivery.fail(error.status, str(error), self.stage, self._node)
        except Exception:
            log.exception("stage %d: the tensors of a request were not fetched", self.stage)
            delivery.hand_back(HAND_BACK_DELAY)

    def go_on(self, before: Delivery) -> None:
        """Take a request from the stage before, on this node, as `features` now has it."""
        self._continued.difference_update([each for each in self._continued if each.ended])
        delivery = Continued(before, int(self._clock() * 1e9), self._continued.discard)
        self._continued.add(delivery)
        try:
            self._compute.take(delivery)
        except BaseException:
            self._continued.discard(delivery)
            raise

    # --- out --------------------------------------------------------------------------

    def computed(
        self, job: Job, outputs: dict[str, np.ndarray], seconds: float, batch: int, weights: int
    ) -> None:
        """Pass a result on: to the next stage, or to the requester."""
        delivery, features = job.delivery, job.features
        if not delivery.intact():
            self.not_computed(job, Status.UNAVAILABLE, "the result means nothing")
            return
        hop = {
            "stage": self.stage,
            "node": self._node,
            "queue_us": job.queue_us,
            "compute_us": int(seconds * 1e6) + job.decode_us,
            "batch": batch,
        }
        if weights:
            hop[WEIGHTS] = weights
        if features.codec:
            hop[CODEC] = features.codec
        if job.told is not None:
            hop |= job.told
        if self._priorities_until:
            self._tell_priorities(hop)
        if features.traceparent and is_sampled(features.traceparent):
            hop |= self._moments(job)
        if self._audit is not None:
            self._audit.received(features, hop, job.steps or {})
        features.hops.append(hop)
        if self._onward is None or job.is_whole_answer:
            urgent = delivery.fast or seconds > LONG_RUN
            delivery.answer(outputs, urgent, partial(self._answered, job))
            if features.instead:
                self.stats.stood_in.note(features.instead, self._clock())
            if self._audit is not None:
                self._audit.answered(features, outputs)
        else:
            features.stage = self.stage + 1
            features.tensors = outputs
            after = self._beside(self.stage + 1)
            if after is not None and after.is_primary:
                self._continue(job, after)
            else:
                self._pass_on(job)
        # Behind the sending: with the caches that a long run leaves, these take 0.04 ms.
        self._link.push()
        if job.is_whole_answer:
            return  # nothing was computed: it says nothing of the stage's runs
        now = self._clock()
        self.stats.compute.add(seconds, now)
        self.stats.busy += seconds / batch + job.decode_us / 1e6
        self.stats.queue.add(job.queue_us / 1e6, now)
        self.stats.batch_sizes[0 if batch == 1 else batch_bucket(batch)] += 1

    def _tell_priorities(self, hop: dict[str, Any]) -> None:
        if self._priorities_until > self._clock():
            hop[PRIORITIES] = True
        else:
            self._priorities_until = 0.0
            self.source.let_pass(None)

    def _continue(self, job: Job, after: StageServer) -> None:
        """The next stage of this node goes on with the request."""
        features = job.features
        features.budget_us = int((job.expires - self._clock()) * 1e6)
        features.codec = ""
        self.stats.counters.served += 1
        self.stats.counters.continued += 1
        _end(job)
        delivery = job.delivery.go_on() if isinstance(job.delivery, Continued) else job.delivery
        if self.stage % STAGES_AT_A_TURN:
            after.go_on(delivery)
        else:
            self._loop.call_soon(_go_on, after, delivery)

    def _pass_on(self, job: Job) -> None:
        """Send the result to whoever serves the next stage."""
        assert self._onward is not None
        delivery, features = job.delivery, job.features
        lane = ANY
        if self._next_lane is not None:
            lane = self._next_lane(self.info, self.stage + 1, features)
        parcel = Parcel(
            features,
            job.expires,
            lane=lane,
            fast=delivery.fast,
            wanted=lambda: not delivery.ended,
            clock=self._clock,
        )
        sending = self._onward.send(parcel, partial(self._event, job, parcel))
        if not job.ended:
            job.sending = sending

    def _moments(self, job: Job) -> dict[str, int]:
        """What a traced request is told besides."""
        at = self._server_clock.unix_us(int(job.started * 1e9))
        return moments(at, int(job.age * 1e6), job.batch_wait_us)

    def _event(self, job: Job, parcel: Parcel, event: Event) -> None:
        """What became of a result on its way to the next stage."""
        delivery = job.delivery
        if job.ended:
            return  # a late process was done with it while it was being stored again
        try:  # as the first rules of `SENT` say, which cost 3 us an event
            match event:
                case InFlight():
                    delivery.release_credit()
                case Acked(passed_on):
                    self.stats.counters.handed_over += 1
                    self._finish(job, passed_on)
                case Stored():
                    # One that waited for room may still be with a late process, whose word would
                    # free the memory that the lane's copy is read from.
                    _drop(job)
                    self._finish(job, passed_on=True)
                case Published():
                    self._link.push()
                    self._finish(job, passed_on=False)
                case Refused(error):
                    delivery.take_credit()
                    left = job.expires - self._clock()
                    onward = Onward(event, False, delivery.fast, left, self._blocked)
                    self._not_sent(job, parcel, error, decide(SENT, onward))
        except Exception:
            # Nobody else ends the delivery: kept alive for ever, it would cost a credit.
            delivery.hand_back(HAND_BACK_DELAY)
            raise

    def _answered(self, job: Job, error: SwarmError | None) -> None:
        if error is None:
            self._finish(job, passed_on=False)
            return
        left = job.expires - self._clock()
        self._give_up(job, error, decide(NOT_SENT, Onward(Refused(error), False, False, left)))

    def _finish(self, job: Job, passed_on: bool) -> None:
        """This stage's part is done, and its result is safe."""
        self.stats.counters.served += 1
        _end(job)
        job.delivery.ack(passed_on)
        if self._lender.lent:
            self._lender.collect()

    def _not_sent(self, job: Job, parcel: Parcel, error: SwarmError, move: StageMove) -> None:
        full = isinstance(error, ResourceExhausted)
        self.stats.counters.blocked += full
        if move.do is After.STORE_AGAIN:
            self._blocked += 1
            self._loop.call_later(move.seconds, self._try_again, job, parcel)
            return
        if full:
            # How long it stays full is unknown: as long again as it has been, for this one.
            text = f"the lane of stage {self.stage + 1} is full: {error}"
            error = ResourceExhausted(text, max(move.seconds, self._clock() - job.started))
        _drop(job)
        parcel.loan.take_back()
        self._give_up(job, error, move)

    def _try_again(self, job: Job, parcel: Parcel) -> None:
        self._blocked -= 1
        if job.delivery.ended or self._onward is None:
            _drop(job)
            parcel.loan.take_back()
        else:
            self._onward.store(parcel, partial(self._event, job, parcel))

    def _give_up(self, job: Job, error: SwarmError, move: StageMove) -> None:
        """A result could not be sent."""
        _end(job)
        if move.do is After.WITHDRAW:
            job.delivery.withdraw()
        elif move.do is After.HAND_BACK:
            log.info("stage %d: %s; the message goes back to its lane", self.stage, error)
            job.delivery.hand_back(move.seconds)
        else:
            self.not_computed(job, error.status, str(error), retry_after_of(error))

    def not_computed(self, job: Job, status: Status, reason: str, retry_after: float = 0.0) -> None:
        """Answer with a failure. retry_after: seconds, as of `Delivery.fail`."""
        if self._audit is not None:
            self._audit.failed(job.features, status)
        if job.is_own_fault:
            job.features.hops.append(self._idle_hop(job) | (job.told or {}))
        job.delivery.fail(status, reason, self.stage, self._node, retry_after)

    def _idle_hop(self, job: Job) -> dict[str, Any]:
        """The hop of a failure. It tells the requester that this stage itself works."""
        return {"stage": self.stage, "node": self._node, "queue_us": job.queue_us, "compute_us": 0}

    def cancelled(self, job: Job) -> None:
        """Nobody waits for the job any more."""
        self.stats.counters.cancelled += 1
        job.delivery.drop()

    def behind(self, weights: int) -> None:
        """A request waits for newer weights than the model's."""
        self._on_behind(weights)

    def stayed_behind(self, job: Job, weights: int) -> None:
        """Answer that the model has older weights than the request asks for, with a hop of this
        stage that says which: the requester knows by it that nothing is broken here."""
        hop = self._idle_hop(job)
        job.features.hops.append(hop | {"batch": 0, WEIGHTS: weights} if weights else hop)
        text = (
            f"stage {self.stage} computes with weight version {weights} here, the request asks for "
            f"{job.features.weights} at least: ask again later, or for less"
        )
        self.not_computed(job, Status.UNAVAILABLE, text)

    def cancel(self, request_id: str) -> None:
        """Nobody waits for this request: do not compute it, here or when it comes again."""
        self._compute.cancel(request_id, self._clock())

    # --- trouble ----------------------------------------------------------------------

    def suspend(self) -> None:
        """Give back all requests in hand, and give up on a run that hangs."""
        self._suspended = True
        self.source.pause()
        self.source.hand_back()
        for delivery in list(self._continued):
            delivery.hand_back()
        self._compute.abandon()

    def resume(self) -> None:
        """Serve again, with a fresh thread."""
        self._compute.restart()
        self._suspended = False
        self.source.resume()

    @property
    def on_loop(self) -> OnLoop:
        """Its runs on the event loop."""
        return self._compute.on_loop

    def end_runs(self) -> None:
        """End the runs in the thread, which take too long while known input is computed well."""
        self._compute.end_runs()

    def replace_model(self, model: StageModel) -> None:
        """Serve with another session of the same weights from the next run on. It has to give the
        known output of the one before."""
        self._self_test.of(model)
        self._compute.use(model)

    def take_weights(self, model: StageModel, known: Known | None) -> None:
        """Serve with other weights from the next run on. known: what this model gave for known
        input."""
        self._self_test.expect(known)
        self._compute.use(model)

    @property
    def has_known_input(self) -> bool:
        """Whether `self_test` tests anything."""
        return self._self_test.is_known

    def self_test(self) -> bool:
        """Run the model on known input: whether it gives the known output."""
        return self._self_test.passes()

    # --- end ------------------------------------------------------------------------

    async def drain(self, timeout: float = 5.0) -> None:
        """Stop asking, give back what is queued, finish what runs."""
        self._stopping = True
        await self.source.drain()
        for job in self._compute.take_all_waiting():
            job.delivery.hand_back()
        deadline = self._clock() + timeout
        while self.queued and self._link.connected and self._clock() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_LOOK_EVERY)  # once, at the end of a life
        if self._onward is not None:
            self._onward.close()
        self.source.close()

    def close(self) -> None:
        """Let the present run end, then the thread."""
        self._compute.close()


def _go_on(after: StageServer, delivery: Delivery) -> None:
    """Called in a turn of the event loop of its own, where no caller would catch a defect."""
    try:
        after.go_on(delivery)
    except Exception:
        log.exception("stage %d: a request did not go on", after.stage)
        delivery.hand_back(HAND_BACK_DELAY)


def _drop(job: Job) -> None:
    """Stop waiting for news of the job's result."""
    if job.sending is not None:
        job.sending.drop()


def _end(job: Job) -> None:
    """The job's work is over. Its sending, which knows the job, is let go: a circle of references
    for each request would be work for the garbage collector."""
    job.ended = True
    job.sending = None
