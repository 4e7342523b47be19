"""One message as a lane delivered it, and the ways to settle it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from swarm.errors import DecodeError

if TYPE_CHECKING:
    from swarm.lanes.consumer import Lane


class Delivery:
    """data: the message. delivered: how often it was handed out, 1 the first time.

    stored: the server's time of storage in ns. pending: messages waiting behind it.
    received: `time.monotonic_ns()` of its arrival. Exactly one of `ack`, `nak`, `term`
    settles it; a second one, or one after the connection it came over was lost, does
    nothing: by then the message is (or will be) somebody else's.
    """

    __slots__ = (
        "_lane",
        "data",
        "delivered",
        "epoch",
        "pending",
        "received",
        "reply",
        "sequence",
        "stored",
        "touched",
        "worked_at",
    )

    def __init__(self, lane: Lane, reply: str, data: bytes | memoryview, received: int) -> None:
        self._lane = lane
        self.data = data
        self.reply = reply
        self.received = self.touched = received
        self.epoch = lane.epoch
        self.worked_at = 0  # ns, when the work was done, if it was not settled then
        self.delivered, self.sequence, self.stored, self.pending = parse_ack_subject(reply)

    fresh = False  # it came in fast mode: not a lane's
    direct = False  # it came from a process of this host, without the server

    @property
    def age(self) -> float:
        """Seconds it lay in the lane before it arrived."""
        return self._lane.clock.age(self.stored, self.received) / 1e9

    @property
    def settled(self) -> bool:
        return self._lane.held.get(self.sequence) is not self

    def worked(self, at: int = 0) -> None:
        """The work is done, now or `at` ns; it is settled at another node's word. That takes none
        of the lane's credit, and not how long it takes, but how long the work took, is what
        ack_wait follows."""
        self.worked_at = self.worked_at or at or time.monotonic_ns()
        self._lane.worked(self, True)

    def unworked(self) -> None:
        """The word was another, or none: it is this node's again."""
        self.worked_at = 0
        self._lane.worked(self, False)

    def ack(self) -> bool:
        """Done: remove it, and ask for the next in the same message. False when it is (or will
        be) somebody else's: what it stands for is needed still."""
        return self._lane.settle(self, b"+NXT")

    def nak(self, delay: float = 0.0) -> None:
        """Not done: hand it out again, to anyone, after `delay` seconds."""
        if delay:
            self._lane.settle(self, b'-NAK {"delay": %d}' % int(delay * 1e9))
        else:
            self._lane.settle(self, b"-NAK")

    def term(self) -> None:
        """Never hand it out again."""
        self._lane.settle(self, b"+TERM")

    def withdraw(self) -> bool:
        """Whether it can be forgotten, because another copy of it will come."""
        return False


def parse_ack_subject(reply: str) -> tuple[int, int, int, int]:
    """(delivered, stream sequence, stored ns, pending) of both ack subject formats.

    `$JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<ts>.<pending>`, or with a domain
    and an account hash before the stream (ADR-15). Raises `DecodeError`.
    """
    tokens = reply.split(".")
    at = 4 if len(tokens) == 9 else 6
    try:
        if tokens[1] != "ACK":
            raise ValueError
        return int(tokens[at]), int(tokens[at + 1]), int(tokens[at + 3]), int(tokens[at + 4])
    except (ValueError, IndexError):
        raise DecodeError(f"{reply!r} is no JetStream ack subject") from None
