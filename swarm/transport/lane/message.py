"""One message as a lane delivered it, and the ways to settle it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from swarm.errors import DecodeError

# The answers to a message that the server understands (docs.nats.io, "JetStream wire API").
ACK, ACK_AND_NEXT, NAK, TERM, IN_PROGRESS = b"+ACK", b"+NXT", b"-NAK", b"+TERM", b"+WPI"


class Keeper(Protocol):
    """The lane that a message came from, as far as the message needs it."""

    def age(self, message: LaneMessage) -> float: ...
    def least_age(self, message: LaneMessage) -> float | None: ...
    def measure_ages(self, then: Callable[[], None] | None) -> None: ...
    def has(self, message: LaneMessage) -> bool: ...
    def release_credit(self, message: LaneMessage, at_ns: int) -> None: ...
    def take_credit(self, message: LaneMessage) -> None: ...
    def end(self, message: LaneMessage, verb: bytes) -> bool: ...


class LaneMessage:
    """A message in hand. One of `ack`, `nak` and `term` settles it.

    A second one does nothing, nor does one after the connection was lost over which the message
    came: the server has handed the message to another node by then, or will.

    data: the message's bytes. reply: the subject on which the server waits to hear of the message.
    times_delivered: how often the server has handed it out, 1 for the first time.
    sequence: its number in the stream. stored: the server's time of storage, ns.
    pending: messages that waited behind it in the lane when it was sent.
    received: `time.monotonic_ns()` of its arrival. touched: ns of the same clock when the server
    last heard that it is worked on. done_at: ns of the same clock when the work was done, if the
    message is not settled since; else 0.
    """

    __slots__ = (
        "_keeper",
        "data",
        "done_at",
        "pending",
        "received",
        "reply",
        "sequence",
        "stored",
        "times_delivered",
        "touched",
    )

    def __init__(self, keeper: Keeper, reply: str, data: bytes | memoryview, received: int) -> None:
        """Raises `DecodeError` where `reply` is no ack subject of JetStream."""
        self._keeper = keeper
        self.data = data
        self.reply = reply
        self.received = self.touched = received
        self.done_at = 0
        self.times_delivered, self.sequence, self.stored, self.pending = parse_ack_subject(reply)

    @property
    def age(self) -> float:
        """Seconds between its storage in the lane and its arrival here, as far as is known."""
        return self._keeper.age(self)

    @property
    def least_age(self) -> float | None:
        """Seconds that it surely lay in the lane; None while that is not known."""
        return self._keeper.least_age(self)

    def measure_age(self, then: Callable[[], None] | None = None) -> None:
        """Make `least_age` known; then() is called when it is, or cannot be known."""
        self._keeper.measure_ages(then)

    @property
    def ended(self) -> bool:
        """Whether this node has settled the message, or lost the connection that it came over."""
        return not self._keeper.has(self)

    def release_credit(self, at_ns: int = 0) -> None:
        """The work is done, now or at `at_ns`, and another node has the result, unconfirmed.

        The message takes none of the lane's credit from now on, and the time from now on does not
        count as time that the work took.
        """
        self._keeper.release_credit(self, at_ns)

    def take_credit(self) -> None:
        """The other node does not have the result after all: the message takes this node's credit
        again."""
        self._keeper.take_credit(self)

    def ack(self) -> bool:
        """Done: the server removes the message, and sends the next one if there is room for it.

        False when the message is not this node's any more: then another node works on it, or will.
        """
        return self._keeper.end(self, ACK_AND_NEXT)

    def nak(self, delay: float = 0.0) -> None:
        """Not done: the server hands it out again, to any node, after `delay` seconds."""
        verb = NAK + b' {"delay": %d}' % int(delay * 1e9) if delay else NAK
        self._keeper.end(self, verb)

    def term(self) -> None:
        """The server never hands it out again."""
        self._keeper.end(self, TERM)


def parse_ack_subject(reply: str) -> tuple[int, int, int, int]:
    """(times delivered, stream sequence, stored ns, pending) of both formats of ack subjects.

    `$JS.ACK.<stream>.<consumer>.<delivered>.<sseq>.<cseq>.<ts>.<pending>`, or with a domain
    and an account hash before the stream (ADR-15). Raises `DecodeError`.
    """
    tokens = reply.split(".", 12)
    at = 4 if len(tokens) == 9 else 6
    try:
        if tokens[1] != "ACK":
            raise ValueError
        return int(tokens[at]), int(tokens[at + 1]), int(tokens[at + 3]), int(tokens[at + 4])
    except (ValueError, IndexError):
        raise DecodeError(f"{reply[:80]!r} is no JetStream ack subject") from None
