"""What leaves a stage: features for the next lane, answers, failures, dead letters."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from nodes.stage.counters import StageStats
from nodes.stage.jobs import Job, is_direct, is_fresh, withdraw
from swarm.errors import NotConnected, ResourceExhausted, Status, SwarmError
from swarm.fleet.placement import NOWHERE, Nearby
from swarm.lanes import AnyDelivery, Early, Publisher
from swarm.link import Link, LinkMessage
from swarm.local.compact import answer_parts, features_parts
from swarm.local.host_socket import Direct
from swarm.local.lending import UNLENT, Claims, Lent
from swarm.model import ModelInfo
from swarm.subjects import ANY, Subjects
from swarm.transport.handover import Handovers
from swarm.wire.messages import Features, Result, failure, result_parts
from swarm.wire.tensors import Part

log = logging.getLogger("swarm.stage")

NextLane = Callable[[ModelInfo, int, Features], str]
KEPT_FRESH = 256  # requests in fast mode; the server tells within a round trip
LONG_RUN = 0.001  # seconds; behind it caches are cold, and an ack takes 0.06 ms: answer first
RETRY_FULL_LANE = 0.004  # seconds between attempts while the next lane is full ...
BLOCKED = 8  # ... and few are held for it; more of them wait longer


class Outbox:
    """The sending half of a stage. Every job that enters leaves by `sent`, `fail` or `bury`.

    next_near: nodes of the next stage on this host. next_lane: the routing policy, if any.
    """

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        publisher: Publisher,
        info: ModelInfo,
        stage: int,
        node: str,
        claims: Claims | None = None,
        next_near: Callable[[], Nearby] = lambda: NOWHERE,
        next_lane: NextLane = lambda info, stage, features: ANY,
        direct: Direct | None = None,
    ) -> None:
        self.info = info
        self.stage = stage
        self.stats = StageStats()
        self._link = link
        self._publisher = publisher
        self._node = node
        self._claims = claims
        self._next_near = next_near
        self._direct = direct or Direct(link)
        self._handovers = Handovers(link, self._direct, self, info, stage)
        self._longest = max((s.compute_ms / 1e3 for s in info.stages[stage:]), default=0.0)
        self._loop = asyncio.get_running_loop()
        self._last = stage == info.last
        following = (info.model, info.version, stage + 1)
        self._subject_of = partial(subjects.features, *following)
        self._next_lane = next_lane
        self._next_fresh = "" if self._last else subjects.fresh(*following)
        self._dead = subjects.dead(info.model)
        # Fast mode: what was sent last, by the subject on which the server says that nobody
        # listens. It says so to the sender only, never to a third one that waits for the answer.
        self._unheard = f"{link.options.inbox}.unheard{stage}"
        self._sent_fresh: dict[str, Features] = {}
        self._count = 0
        self._blocked = 0  # jobs that wait for room in the next lane
        self._sid = link.subscribe(f"{self._unheard}.*", self._nobody)

    def serves(self, features: Features) -> bool:
        """Whether they were sent for this stage of this version."""
        info = self.info
        wanted = (info.model, info.version, self.stage)
        return (features.model, features.version, features.stage) == wanted

    def close(self) -> None:
        """Nothing leaves any more."""
        self._handovers.close()
        self._link.unsubscribe(self._sid)

    def sent(self, job: Job, result: dict[str, np.ndarray], seconds: float, batch: int) -> None:
        """Pass a result on: to the next lane, or to the requester."""
        if not self._intact(job):
            self.fail_job(job, Status.UNAVAILABLE, "the result means nothing")
            return
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
            self._answer(job, result, seconds)
        else:
            features.stage = self.stage + 1
            features.tensors = result
            self._forward(job)
        # Behind the sending: with the caches that a long run leaves, these took 0.04 ms.
        self._link.push()
        now = time.monotonic()
        self.stats.compute.add(seconds, now)
        self.stats.queue.add(job.queue_us / 1e6, now)

    def _intact(self, job: Job) -> bool:
        """Whether the shared memory of a job is still what was lent to it."""
        return not job.opened or self._claims is None or self._claims.intact(job.opened)

    def _answer(self, job: Job, result: dict[str, np.ndarray], seconds: float) -> None:
        features = job.features
        answer = Result(
            features.id, features.model, features.version, outputs=result, attempt=features.attempt
        )
        claims = self._claims
        here = claims is not None and features.host != "" and features.host == claims.host
        directly = here and is_direct(job.delivery)
        try:
            lent = UNLENT
            if claims is not None and here:
                lent = claims.lend(result)
            with lent:
                if directly:
                    parts = answer_parts(answer, features, lent)
                else:
                    parts = result_parts(answer, features.all_hops, lent.packed)
        except SwarmError as error:
            self._unsent(job, error)
            return
        publish = partial(self._publish, job.delivery, features.reply, parts)
        first = is_fresh(job.delivery) or seconds > LONG_RUN
        left = partial(self._left, job, lent, publish, first)
        if directly:
            self._direct.answer(features.reply, parts, left)
        else:
            left(False)

    def _left(
        self, job: Job, lent: Lent, publish: Callable[[], None], first: bool, sent: bool
    ) -> None:
        """A message went directly, or goes by the server now; with that, this stage's part is done.
        first: the message is more urgent than the ack."""
        try:
            with lent:
                if not sent:
                    publish()
        except SwarmError as error:
            self._unsent(job, error)
            return
        if first:
            self._link.push()
        # Same connection, same order: the server has the message before it has the ack. (What went
        # directly is in the other one's socket already.)
        self._finish(job)

    def _publish(self, delivery: AnyDelivery, reply: str, parts: list[Part]) -> None:
        """Answer by the server. Raises `NotConnected`, `ResourceExhausted`."""
        self._link.publish(reply, parts)
        if type(delivery) is Early:
            delivery.published = True

    def _forward(self, job: Job, hand_over: bool = True, lent: Lent = UNLENT) -> None:
        """Pass features on to the next stage. lent: what was lent for the attempt before."""
        claims = self._claims
        try:
            near = self._next_near()
            # Later attempts send the same claims: kept, the arrays would lie in memory twice.
            if near.shared and claims is not None and not lent.claims:
                lent = claims.lend(job.features.tensors)
                job.features.tensors = lent.tensors or job.features.tensors
            with lent:
                if is_fresh(job.delivery):
                    self._send_fresh(job, near, lent)
                else:
                    self._send(job, near, lent, hand_over)
        except SwarmError as error:
            self._unsent(job, error)

    def _again(self, job: Job, lent: Lent) -> None:
        """The lane was full."""
        self._blocked -= 1
        if job.delivery.settled:
            lent.take_back()
        else:
            self._forward(job, hand_over=False, lent=lent)

    def handed(self, job: Job) -> None:
        """It is on its way to a node of this host (see `Keeper`)."""
        job.delivery.held()

    def lost(self, job: Job) -> None:
        """It could not be passed on (see `Keeper`): it goes back."""
        job.delivery.nak()

    def store(self, job: Job, lent: Lent, subject: str, late: bool) -> None:
        """What was handed over in vain goes to its lane (see `Keeper`)."""
        job.delivery.unheld()
        if job.delivery.settled:
            lent.take_back()
            return
        try:
            with lent:
                self._put(job, lent, subject, self._encode(job, lent))
        except SwarmError as error:
            self._unsent(job, error)

    def _encode(self, job: Job, lent: Lent) -> list[Part]:
        """Raises `InvalidArgument` for an output that has no datatype on the wire."""
        _count_down(job)
        return job.features.parts(lent.packed)

    def _send(self, job: Job, near: Nearby, lent: Lent, hand_over: bool) -> None:
        """To the next lane, or its node. Raises `NotConnected`, `ResourceExhausted`."""
        features = job.features
        lane = self._next_lane(self.info, self.stage + 1, features)
        subject = self._subject_of(lane)
        # Whatever was in the way of the first attempt: the second one goes by the lanes.
        if hand_over and features.attempt == 1 and self._link.connected:
            inbox = near.inboxes.get(lane, "")
            if inbox and self._hand_over(inbox, subject, job, lent):
                return
        self._put(job, lent, subject, self._encode(job, lent))

    def _hand_over(self, inbox: str, subject: str, job: Job, lent: Lent) -> bool:
        usual = max(self.stats.compute.ewma, self._longest)
        if not self._handovers.takes(inbox, usual):
            return False
        _count_down(job)
        parts = features_parts(job.features, lent)
        return self._handovers.over(inbox, subject, parts, job, lent, usual)

    def _put(self, job: Job, lent: Lent, subject: str, parts: list[Part]) -> None:
        stored = partial(self._stored, job, lent)
        self._publisher.publish(subject, parts, job.features.message_id, stored)

    def _unsent(self, job: Job, error: SwarmError) -> None:
        if isinstance(error, NotConnected):
            withdraw(job.delivery)  # a lane's own is handed out again
        else:
            self.fail_job(job, error.status, str(error))

    def _send_fresh(self, job: Job, near: Nearby, lent: Lent) -> None:
        """To the next stage, in fast mode."""
        left = partial(self._left, job, lent, partial(self._publish_fresh, job, lent), True)
        inbox = near.inboxes.get(ANY, "") if is_direct(job.delivery) else ""
        if inbox:
            _count_down(job)
            self._direct.post(inbox, self._next_fresh, features_parts(job.features, lent), left)
        else:
            left(False)

    def _publish_fresh(self, job: Job, lent: Lent) -> None:
        """By the server. Raises `NotConnected`, `ResourceExhausted`."""
        parts = self._encode(job, lent)
        self._link.publish(self._next_fresh, parts, self._expect_nobody(job.features))
        job.features.tensors = {}  # sent: what may still be told of it needs none

    def _expect_nobody(self, features: Features) -> str:
        """A reply subject for the case that the next stage has no node."""
        self._count += 1
        subject = f"{self._unheard}.{self._count:x}"
        self._sent_fresh[subject] = features
        if len(self._sent_fresh) > KEPT_FRESH:
            del self._sent_fresh[next(iter(self._sent_fresh))]
        return subject

    def _nobody(self, message: LinkMessage) -> None:
        features = self._sent_fresh.pop(message.subject, None)
        if features is None or message.status != b"503":
            return
        text = f"no node serves stage {self.stage + 1} at present"
        parts = failure(features, Status.UNAVAILABLE, text, self.stage + 1, "")
        with contextlib.suppress(SwarmError):  # the requester asks again
            self._link.publish(features.reply, parts)

    def done(self, job: Job, passed_on: bool) -> None:
        """What was handed over is safe (see `Keeper`)."""
        self.stats.counters.handed_over += 1
        self._finish(job, passed_on)

    def _finish(self, job: Job, passed_on: bool = False) -> None:
        """This stage's part is done and known to be safe: answered, or passed on to a lane."""
        if passed_on and type(job.delivery) is Early:
            job.delivery.passed_on = True
        self.stats.counters.served += 1
        self._settle(job)
        if self._claims is not None:
            self._claims.collect()

    def _settle(self, job: Job) -> None:
        if job.delivery.ack() and job.opened and self._claims is not None:
            self._claims.done(job.opened)

    def _stored(self, job: Job, lent: Lent, error: SwarmError | None, _sequence: int) -> None:
        """The next lane's answer: only now is this stage's work done."""
        if error is None:
            self._finish(job, passed_on=True)
            return
        if isinstance(error, ResourceExhausted):
            # Hold it: this lane fills up in turn, up to the requester, who is refused at once.
            self.stats.counters.blocked += 1
            pause = RETRY_FULL_LANE * (1 + self._blocked // BLOCKED)
            if job.expires - time.monotonic() > pause:
                self._blocked += 1
                self._loop.call_later(pause, self._again, job, lent)
                return
            error = ResourceExhausted(f"the lane of stage {self.stage + 1} is full")
        lent.take_back()
        if isinstance(error, NotConnected | ResourceExhausted):
            self._unsent(job, error)
        else:
            log.info("stage %d: %s; the message goes back to its lane", self.stage, error)
            job.delivery.nak(0.05)

    def tell(self, reply: str, word: bytes, published: bool = False) -> None:
        """Who handed a message over hears what came of it; of what it does not hear, it thinks the
        worst. published: an answer went to the server, and has to be there before the word."""
        if not reply:
            return

        def told(sent: bool) -> None:
            if not sent:
                with contextlib.suppress(SwarmError):
                    self._link.publish(reply, word)

        if published:
            told(False)
        else:
            self._direct.answer(reply, [word], told)

    def fail(
        self,
        delivery: AnyDelivery,
        features: Features,
        status: Status,
        text: str,
        settle: bool = True,
    ) -> bool:
        """Answer with a failure, and be done with the message. False: it could not be answered, and
        another copy will come."""
        if status not in (Status.DEADLINE_EXCEEDED, Status.RESOURCE_EXHAUSTED):
            self.stats.counters.failed += 1
        try:
            if features.reply:
                parts = failure(features, status, text, self.stage, self._node)
                self._publish(delivery, features.reply, parts)
        except SwarmError as error:
            log.info("a failure could not be reported: %s", error)
            if withdraw(delivery):
                return False
        if settle and delivery.ack() and self._claims is not None:
            self._claims.give_back(features.tensors)
        return True

    def fail_job(self, job: Job, status: Status, text: str) -> None:
        """The same for a job, whose shared memory nobody needs any more."""
        if not self._intact(job):
            # What it failed on was not what was sent.
            if withdraw(job.delivery):
                return
            status, text = Status.UNAVAILABLE, f"a claim was recycled; {text}"
        if self.fail(job.delivery, job.features, status, text, settle=False):
            self._settle(job)

    def drop(self, job: Job) -> None:
        """Nobody waits for it any more."""
        self.stats.counters.cancelled += 1
        self._settle(job)

    def bury(self, delivery: AnyDelivery, reason: str) -> None:
        """Dead-letter a message that no node can serve."""
        self.stats.counters.dead_lettered += 1
        log.warning("stage %d: dead letter: %s", self.stage, reason)
        text = reason.encode("ascii", "replace")[:400].replace(b"\r", b" ").replace(b"\n", b" ")
        headers = b"NATS/1.0\r\nSwarm-Reason: %b\r\nSwarm-Stage: %d\r\n\r\n" % (text, self.stage)
        try:
            self._link.publish(self._dead, [delivery.data], headers=headers)
        except SwarmError as error:
            log.warning("a dead letter could not be stored: %s", error)
        delivery.term()


def _count_down(job: Job) -> None:
    """What is left of its budget."""
    job.features.budget_us = int((job.expires - time.monotonic()) * 1e6)
