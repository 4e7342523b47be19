"""What leaves a stage: features for the next lane, answers, failures, dead letters."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from nodes.counters import StageStats
from nodes.job import Job
from swarm.claims import UNLENT, Claims, Lent
from swarm.direct import Direct
from swarm.errors import NotConnected, ResourceExhausted, Status, SwarmError
from swarm.lanes import AnyDelivery, Publisher
from swarm.link import Link, LinkMessage
from swarm.messages import Features, Result, failure, result_parts
from swarm.model import ModelInfo
from swarm.near import NOWHERE, Near
from swarm.subjects import ANY, Subjects
from swarm.tensors import Part

log = logging.getLogger("swarm.stage")

NextLane = Callable[[ModelInfo, int, Features], str]
KEPT_FRESH = 256  # requests in fast mode; the server tells within a round trip
LONG_RUN = 0.001  # seconds; behind it caches are cold, and an ack takes 0.06 ms: answer first
RETRY_FULL_LANE = 0.004  # seconds between attempts while the next lane is full


class Outbox:
    """The sending half of a stage. Every job that enters leaves by `sent`, `fail` or `bury`.

    next_near: which nodes of the next stage are on this host. next_lane: the
    routing policy; the shared lane without one.
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
        next_near: Callable[[], Near] = lambda: NOWHERE,
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
        self._sid = link.subscribe(f"{self._unheard}.*", self._nobody)

    def serves(self, features: Features) -> bool:
        """Whether they were sent for this stage of this version."""
        info = self.info
        wanted = (info.model, info.version, self.stage)
        return (features.model, features.version, features.stage) == wanted

    def close(self) -> None:
        """Nothing leaves any more."""
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
        try:
            lent = UNLENT
            if claims is not None and features.host and features.host == claims.host:
                lent = claims.lend(result)
            with lent:
                parts = result_parts(answer, features.hops, lent.packed)
                # What came directly came from this host, where its requester waits.
                if not job.delivery.direct or not self._direct.answer(features.reply, parts):
                    self._link.publish(features.reply, parts)
        except NotConnected:
            job.delivery.withdraw()
            return  # it will be handed out again
        except SwarmError as error:
            self.fail_job(job, error.status, str(error))
            return
        if job.delivery.fresh or seconds > LONG_RUN:
            self._link.push()
        # Same connection, same order: the server has the answer before it has the ack. (What went
        # directly is in the requester's socket already.)
        self._finish(job)

    def _forward(self, job: Job, again: bool = False) -> None:
        features = job.features
        features.budget_us = int((job.expires - time.monotonic()) * 1e6)
        claims = self._claims
        try:
            lent = UNLENT
            near = self._next_near()
            if near.shared and claims is not None and claims.wants(features.tensors):
                lent = claims.lend(features.tensors)
            with lent:
                # Raises for an output that has no datatype on the wire.
                parts: list[Part] = features.parts(lent.packed)
                if job.delivery.fresh:
                    inbox = near.inboxes.get(ANY, "") if job.delivery.direct else ""
                    if not inbox or not self._direct.send(inbox, self._next_fresh, parts):
                        self._link.publish(self._next_fresh, parts, self._expect_nobody(features))
                else:
                    lane = self._next_lane(self.info, self.stage + 1, features)
                    subject = self._subject_of(lane)
                    inbox = near.inboxes.get(lane, "") if job.delivery.direct else ""
                    ahead = inbox and not again and self._link.connected
                    if ahead and self._direct.send(inbox, subject, parts):
                        lent.keep()
                    stored = partial(self._stored, job, lent)
                    self._publisher.publish(subject, parts, features.message_id, stored)
        except NotConnected:
            job.delivery.withdraw()
            return  # the message will be handed out again
        except SwarmError as error:
            self.fail_job(job, error.status, str(error))
        else:
            if job.delivery.fresh:
                self._link.push()
                features.tensors = {}  # sent: what may still be told of it needs none
                self._finish(job)

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
        self._report(failure(features, Status.UNAVAILABLE, text, self.stage + 1, ""), features)

    def _finish(self, job: Job) -> None:
        """This stage's part is done and known to be safe."""
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
            self._finish(job)
            return
        lent.take_back()
        if isinstance(error, ResourceExhausted):
            # Hold it: this lane fills up in turn, up to the requester, who is refused at once.
            self.stats.counters.blocked += 1
            if job.expires - time.monotonic() > RETRY_FULL_LANE:
                self._loop.call_later(RETRY_FULL_LANE, self._retry, job)
            else:
                text = f"the lane of stage {self.stage + 1} is full"
                self.fail_job(job, Status.RESOURCE_EXHAUSTED, text)
        elif not isinstance(error, NotConnected):
            log.info("stage %d: %s; the message goes back to its lane", self.stage, error)
            job.delivery.nak(0.05)

    def _retry(self, job: Job) -> None:
        if not job.delivery.settled:
            self._forward(job, again=True)

    def fail(
        self,
        delivery: AnyDelivery,
        features: Features,
        status: Status,
        text: str,
        settle: bool = True,
    ) -> None:
        """Answer with a failure, and be done with the message."""
        if status not in (Status.DEADLINE_EXCEEDED, Status.RESOURCE_EXHAUSTED):
            self.stats.counters.failed += 1
        self._report(failure(features, status, text, self.stage, self._node), features)
        if settle and delivery.ack() and self._claims is not None:
            self._claims.give_back(features.tensors)

    def fail_job(self, job: Job, status: Status, text: str) -> None:
        """The same for a job, whose shared memory nobody needs any more."""
        if not self._intact(job):
            # What it failed on was not what was sent.
            if job.delivery.withdraw():
                return
            status, text = Status.UNAVAILABLE, f"a claim was recycled; {text}"
        self.fail(job.delivery, job.features, status, text, settle=False)
        self._settle(job)

    def _report(self, parts: list[Part], features: Features) -> None:
        try:
            if features.reply:
                self._link.publish(features.reply, parts)
        except SwarmError as error:
            log.info("a failure could not be reported: %s", error)

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
