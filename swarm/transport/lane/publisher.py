"""Publishing into a lane: each message is stored or refused, and its sender is told which."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from swarm.errors import (
    ApiError,
    DecodeError,
    NoResponders,
    NotConnected,
    PermissionDenied,
    ResourceExhausted,
    SwarmError,
    Unavailable,
)
from swarm.link import Link, LinkMessage, jetstream
from swarm.transport.lane.kept_lanes import lane_title
from swarm.wire.tensors import Part

log = logging.getLogger("swarm.transport.lane")

OnStored = Callable[["SwarmError | None", int], None]  # (error or None, stream sequence)
ACK_TIMEOUT = 2.0  # seconds, beside the time that large messages take on a slow link
MENDED = (
    "nodes that may make streams make it again within seconds, else an operator does: "
    "`swarm model promote NAME@VERSION`"
)
LANE_TOKENS = 7  # swarm.<mesh>.features.<model>.<version>.<stage>.<lane>
CHECK_AGAIN = 0.25  # seconds between looks at a message that is late and has not left yet


class NotStored(Unavailable):
    """The lane's server has refused the message, for another reason than want of room."""


class NoPubAck(NotStored):
    """The server has said nothing of the message in good time."""


def may_be_stored(error: SwarmError) -> bool:
    """Whether the lane may have a message all the same of which a sender was told this error: the
    server has not refused it."""
    return isinstance(error, NoPubAck | NotConnected | DecodeError)


class _Check(NamedTuple):
    """When to look at a message whose PubAck has not come. sent: large messages that the connection
    had taken with it. was_leaving: at the look before, the connection had not carried them all."""

    due: float
    reply: str
    sent: int
    was_leaving: bool


class Publisher:
    """`publish` writes at once and calls back when the server has stored the message.

    The callback always comes, exactly once: with the server's answer (its PubAck), or with an error
    on its refusal, on the loss of the connection, after `ACK_TIMEOUT`, or on `close()`. A message
    that waits for its turn on a slow link is not late: a second one would wait behind it. Its time
    begins when the server has read it. No task is made for a message. clock: seconds, monotonic.
    """

    def __init__(self, link: Link, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._clock = clock
        self._waiting: dict[str, tuple[OnStored, str]] = {}  # by reply subject; with the lane's
        # When each runs out, in order of time: none waits less long than those before it.
        self._expiry: deque[_Check] = deque()
        self._sweep: asyncio.TimerHandle | None = None
        self._checked = 0.0  # when `_expire` ran last
        link.on_down.append(self._down)
        link.on_denied.append(self._denied)

    def publish(
        self, subject: str, data: Sequence[Part], message_id: str, on_stored: OnStored
    ) -> None:
        """Publish `data` with `message_id`, by which the server drops copies.

        on_stored(error, sequence): None and the number in the stream, or the error and 0.
        Raises `NotConnected` or `ResourceExhausted` at once; then nobody is called back.
        """
        link = self._link
        reply = link.expect_from_server(self._stored)
        headers = b"NATS/1.0\r\nNats-Msg-Id: " + message_id.encode() + b"\r\n\r\n"
        try:
            link.publish(subject, data, reply, headers)
        except SwarmError:
            link.forget(reply)
            raise
        self._waiting[reply] = (on_stored, subject)
        now = self._clock()
        due = self._check_at(reply, link.send_rate.sent, now + ACK_TIMEOUT + link.send_rate.backlog)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(due - now, self._expire)

    def _check_at(self, reply: str, sent: int, due: float, was_leaving: bool = False) -> float:
        """Look at the message at `due`, or with the one before it; returns when."""
        if self._expiry:
            due = max(due, self._expiry[-1].due)
        self._expiry.append(_Check(due, reply, sent, was_leaving))
        return due

    def _stored(self, message: LinkMessage) -> None:
        self._link.forget(message.subject)
        waiting = self._waiting.pop(message.subject, None)
        if waiting is None:
            return
        on_stored, subject = waiting
        if message.status == b"503":
            error = NoResponders(f"{_named(subject)} is missing, or its server is away: {MENDED}")
            self._tell(on_stored, error, 0)
            return
        try:
            sequence = jetstream.stored_sequence(message.data)
        except ApiError as refusal:
            self._tell(on_stored, lane_error(refusal), 0)
        except SwarmError as damaged:
            self._tell(on_stored, damaged, 0)
        else:
            self._tell(on_stored, None, sequence)

    def _fail(self, reply: str, error: SwarmError) -> None:
        self._link.forget(reply)
        if (waiting := self._waiting.pop(reply, None)) is not None:
            self._tell(waiting[0], error, 0)

    def _tell(self, on_stored: OnStored, error: SwarmError | None, sequence: int) -> None:
        try:
            on_stored(error, sequence)
        except Exception:
            # If the error were raised from here, the other senders would not be told, and the sweep
            # would end.
            self._link.callback_errors += 1
            log.exception("a publisher's callback failed")

    def _expire(self) -> None:
        # What was due at the look before is late. Behind a stop of this process, PubAcks may lie in
        # the socket, which is read after timers.
        now, late = self._clock(), self._checked
        self._checked = now
        while self._expiry and (
            self._expiry[0].due <= late or self._expiry[0].reply not in self._waiting
        ):
            _, reply, sent, was_leaving = self._expiry.popleft()
            if reply in self._waiting:
                if not self._link.send_rate.has_carried(sent):
                    self._check_at(reply, sent, now + CHECK_AGAIN, was_leaving=True)
                    continue
                if was_leaving:  # the server has it for a moment only, and stores it behind that
                    self._check_at(reply, sent, now + ACK_TIMEOUT)
                    continue
            self._fail(
                reply, NoPubAck(f"no PubAck within {ACK_TIMEOUT} s and its time on the link")
            )
        self._sweep = None
        if self._expiry:
            delay = max(0.05, self._expiry[0].due - now)
            self._sweep = asyncio.get_running_loop().call_later(delay, self._expire)

    def _denied(self, subject: str, error: PermissionDenied) -> None:
        """This user may not publish there: no PubAck will come."""
        for reply in [reply for reply, waiting in self._waiting.items() if waiting[1] == subject]:
            self._fail(reply, error)

    def _down(self) -> None:
        for reply in list(self._waiting):
            self._fail(reply, NotConnected("the connection was lost before the PubAck"))
        self._expiry.clear()

    def close(self) -> None:
        """Report all that is not stored yet as lost; idempotent."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        if self._down in self._link.on_down:
            self._link.on_down.remove(self._down)
            self._link.on_denied.remove(self._denied)
        self._down()


def _named(subject: str) -> str:
    """The lane that has this subject, in words."""
    tokens = subject.split(".")
    if len(tokens) != LANE_TOKENS:
        return f"the lane of {subject}"
    return lane_title(tokens[3], tokens[4], tokens[5])


def lane_error(error: ApiError) -> SwarmError:
    """The server's refusal as an error: a lane, or a whole store, that is full is told apart from a
    missing JetStream."""
    if error.err_code in jetstream.FULL:
        return ResourceExhausted(f"the lane is full: {error.description}")
    return NotStored(str(error))
