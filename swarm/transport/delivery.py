"""A message for a stage as it came, by whichever way, and the ways to end its work here."""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

import numpy as np

from swarm.clock import nanoseconds
from swarm.errors import Status, SwarmError
from swarm.model import ModelInfo
from swarm.samehost.compact import answer_parts
from swarm.samehost.lending import NO_LOAN, Loan, Opened
from swarm.transport.coding import AnswerCoder
from swarm.transport.fast import FastMessage
from swarm.transport.lane import LaneMessage
from swarm.transport.parcel import are_large
from swarm.transport.referred import Referrals
from swarm.transport.routes import Routes
from swarm.wire.messages import Features, Result, failure, result_parts
from swarm.wire.tensors import Part

log = logging.getLogger("swarm.stage")

Then = Callable[[SwarmError | None], None]


class DeliveryCounts(Protocol):
    """What is counted about a stage's deliveries."""

    failed: int
    refused: int
    redelivered: int
    dead_lettered: int
    taken: int


class ReplyDesk:
    """Sends answers, failures and dead letters of one stage."""

    def __init__(
        self, routes: Routes, info: ModelInfo, stage: int, dead_subject: str, tally: DeliveryCounts
    ) -> None:
        self.link = routes.link
        self.lender = routes.lender
        self.now_ns = nanoseconds(routes.clock)
        self._socket = routes.socket
        self._coder = AnswerCoder(routes, info)
        self._referrals = Referrals(routes.link, routes.lender, self._coder)
        self._stage = stage
        self._dead_subject = dead_subject
        self.tally = tally

    def answer(
        self, delivery: BaseDelivery, outputs: dict[str, np.ndarray], urgent: bool, then: Then
    ) -> None:
        """Send a result to its requester (`Delivery.answer`)."""
        features = delivery.features
        result = Result(
            features.id, features.model, features.version, outputs=outputs, attempt=features.attempt
        )
        here = features.host != "" and features.host == self.lender.host
        directly = here and delivery.direct
        loan = NO_LOAN
        try:
            if here and are_large(outputs):
                loan = self.lender.lend(outputs)
            if directly:
                parts = answer_parts(result, features, loan)
            else:
                packed = loan.packed if loan.claims else None
                coded = None
                if not here:
                    if features.refer:
                        result.outputs = self._referrals.keep(features, outputs)
                    outputs = result.outputs
                    coded = self._coder.code(outputs, features.accepts, features.answer_rate)
                parts = result_parts(result, features.all_hops, packed, coded)
        except SwarmError as error:
            loan.take_back()
            then(error)
            return

        def left(sent: bool) -> None:
            self._left(delivery, loan, parts, sent, urgent, then)

        if directly:
            self._socket.answer(features.reply, parts, left)
        else:
            left(False)

    def _left(
        self,
        delivery: BaseDelivery,
        loan: Loan,
        parts: list[Part],
        sent: bool,
        urgent: bool,
        then: Then,
    ) -> None:
        """The answer lies in the requester's socket, or goes by the server now."""
        try:
            if not sent:
                self.publish(delivery, parts)
        except SwarmError as error:
            loan.take_back()
            then(error)
            return
        if urgent:
            self.link.push()
        # The same connection keeps the order: the server has the answer before the acknowledgement.
        then(None)

    def publish(self, delivery: BaseDelivery, parts: list[Part]) -> None:
        """Answer by the server. Raises `NotConnected`, `ResourceExhausted`."""
        self.link.publish(delivery.features.reply, parts)
        delivery.answered_by_server()

    def fail(
        self,
        delivery: BaseDelivery,
        status: Status,
        text: str,
        stage: int,
        node: str,
        retry_after: float = 0.0,
    ) -> bool:
        """Send a failure to the requester; whether another copy of the message need not come."""
        if status not in (Status.DEADLINE_EXCEEDED, Status.RESOURCE_EXHAUSTED):
            self.tally.failed += 1
        try:
            if delivery.features.reply:
                parts = failure(delivery.features, status, text, stage, node, retry_after)
                self.publish(delivery, parts)
        except SwarmError as error:
            log.info("a failure could not be reported: %s", error)
            return not delivery.withdraw()
        return True

    def dead_letter(self, data: bytes | memoryview, reason: str) -> None:
        """Store a dead letter."""
        self.tally.dead_lettered += 1
        log.warning("stage %d: dead letter: %s", self._stage, reason)
        text = reason.encode("ascii", "replace")[:400].replace(b"\r", b" ").replace(b"\n", b" ")
        headers = b"NATS/1.0\r\nSwarm-Reason: %b\r\nSwarm-Stage: %d\r\n\r\n" % (text, self._stage)
        try:
            self.link.publish(self._dead_subject, [data], headers=headers)
        except SwarmError as error:
            log.warning("a dead letter could not be stored: %s", error)

    def acknowledge(self, reply: str, verb: bytes, behind_answer: bool) -> None:
        """Tell the sender of a parcel what became of it. A sender that hears nothing takes the
        parcel for lost, and stores it in the lane.

        behind_answer: an answer went to the server, and has to be there before the ack."""
        if not reply:
            return

        def posted(sent: bool) -> None:
            if not sent:
                with contextlib.suppress(SwarmError):
                    self.link.publish(reply, verb)

        if behind_answer:
            posted(False)
        else:
            self._socket.answer(reply, [verb], posted)


class BaseDelivery(ABC):
    """What deliveries of all ways have in common. opened: shared memory that the tensors view."""

    __slots__ = ("_desk", "features", "opened")

    fast = False
    direct = False  # from a process of this host, without the server

    def __init__(self, desk: ReplyDesk, features: Features) -> None:
        self._desk = desk
        self.features = features
        self.opened: Opened = []

    @property
    @abstractmethod
    def least_age(self) -> float | None:
        """See `Delivery.least_age`."""

    def measure_age(self, then: Callable[[], None] | None = None) -> None:
        if then is not None:
            then()

    def intact(self) -> bool:
        """Whether the shared memory of the tensors is still what was lent."""
        return not self.opened or self._desk.lender.intact(self.opened)

    def answer(self, outputs: dict[str, np.ndarray], urgent: bool, then: Then) -> None:
        self._desk.answer(self, outputs, urgent, then)

    def fail(
        self, status: Status, text: str, stage: int, node: str, retry_after: float = 0.0
    ) -> bool:
        if not self.intact():
            # The stage failed on other bytes than those that were sent.
            if self.withdraw():
                return False
            status, text = Status.UNAVAILABLE, f"a claim was recycled; {text}"
        told = self._desk.fail(self, status, text, stage, node, retry_after)
        return told and self.ack(False)

    def drop(self) -> None:
        self.ack(False)

    def answered_by_server(self) -> None:
        """An answer or a failure went by the server."""
        return

    @abstractmethod
    def ack(self, passed_on: bool) -> bool:
        """See `Delivery.ack`."""

    def withdraw(self) -> bool:
        return False

    def _release(self) -> None:
        """No copy of the message will need its shared memory."""
        if self.opened:
            self._desk.lender.done(self.opened)


class LaneDelivery(BaseDelivery):
    """A message that a lane handed out."""

    __slots__ = ("_message", "received", "times_delivered")

    def __init__(self, desk: ReplyDesk, message: LaneMessage, features: Features) -> None:
        super().__init__(desk, features)
        self._message = message
        self.received = message.received
        self.times_delivered = message.times_delivered

    @property
    def age(self) -> float:
        return self._message.age

    @property
    def least_age(self) -> float | None:
        return self._message.least_age

    def measure_age(self, then: Callable[[], None] | None = None) -> None:
        self._message.measure_age(then)

    @property
    def ended(self) -> bool:
        return self._message.ended

    def release_credit(self) -> None:
        self._message.release_credit()

    def take_credit(self) -> None:
        self._message.take_credit()

    def ack(self, passed_on: bool) -> bool:
        """Acknowledge; the lane asks for the next message in the same publish. False when the
        message belongs, or will belong, to another node, which still needs its shared memory."""
        if not self._message.ack():
            return False
        self._release()
        return True

    def hand_back(self, delay: float = 0.0) -> None:
        """The lane hands it out again."""
        self._message.nak(delay)

    def dead_letter(self, reason: str) -> None:
        self._desk.dead_letter(self._message.data, reason)
        self._message.term()


class FastDelivery(BaseDelivery):
    """A message of fast mode. If it is lost, its requester notices."""

    __slots__ = ("_message", "age", "direct", "received")

    fast = True
    times_delivered = 1
    ended = False

    def __init__(self, desk: ReplyDesk, message: FastMessage, features: Features) -> None:
        super().__init__(desk, features)
        self._message = message
        self.age = message.age
        self.received = message.received
        self.direct = message.direct

    @property
    def least_age(self) -> float:
        """its way was timed by this host's clock, or not at all."""
        return self.age

    def release_credit(self) -> None:
        """There is no credit in fast mode."""

    def take_credit(self) -> None:
        """There is no credit in fast mode."""

    def ack(self, passed_on: bool) -> bool:
        """Nothing is stored; the memory is free."""
        self._release()
        return True

    def hand_back(self, delay: float = 0.0) -> None:
        """Nothing is stored: the requester asks again."""

    def dead_letter(self, reason: str) -> None:
        self._desk.dead_letter(self._message.data, reason)
