"""The way that a lane's messages come: how long it is, and what follows for the lane. Pure."""

from __future__ import annotations

from swarm.flow.recent import RecentIds
from swarm.flow.transfers import VISIBLE, Transfers
from swarm.transport.lane.message import LaneMessage

WELL_ABOVE = 1.2  # times the wait that was asked for: each change updates a consumer


class LinkSpeed:
    """What one lane knows of its link to the server. Times in seconds.

    expected: bytes of a message before the first one came, 0 where nobody knows.
    """

    __slots__ = ("_acked", "_asked_wait", "_transfers")

    def __init__(self, expected: int) -> None:
        self._transfers = Transfers(expected)
        self._acked = RecentIds()
        self._asked_wait = 0.0

    @property
    def needs_trips(self) -> bool:
        """Whether the rate is a guess because the link looks far: a shorter trip shows it near."""
        return self._transfers.is_guessed

    def saw_round_trip(self, round_trip: float) -> None:
        """The shortest round trip that is known of late."""
        self._transfers.round_trip = round_trip

    def is_seen_by(self, message: LaneMessage) -> bool:
        """Whether a message's time on its way says something about the link.

        A redelivered message does not: the moment at which the server sent it is unknown.
        """
        size = len(message.data)
        return (size >= VISIBLE or self._transfers.is_far) and message.times_delivered == 1

    def arrived(self, message: LaneMessage, age: float, since_asked: float) -> None:
        """A message came, `age` after it was stored and `since_asked` after it was asked for: the
        server sent it once it was both."""
        self._transfers.received(len(message.data), min(age, since_asked))

    def wait(self, credit: int, now: float) -> float:
        """The `ack_wait` that this link needs."""
        return self._transfers.wait(credit, now)

    def credit(self, holding: float) -> int | None:
        """Messages that keep the link busy, if it is slow."""
        return self._transfers.credit(holding)

    @property
    def rate(self) -> float:
        """Bytes a second of the link, 0.0 where it is near or not known."""
        return self._transfers.rate

    def asks_for(self, wait: float) -> None:
        """The server is asked for this `ack_wait`."""
        self._asked_wait = wait

    def is_news(self, wait: float) -> bool:
        """Whether `wait` is well above the one that was asked for last."""
        return wait > self._asked_wait * WELL_ABOVE

    def acked(self, message: LaneMessage, now: float) -> None:
        """Remember an ack that may reach the server too late."""
        if self._transfers.is_far:
            self._acked.add(_key(message), now)

    def was_acked(self, message: LaneMessage) -> bool:
        """Whether this is a copy of a message whose ack is on its way over the same connection."""
        return _key(message) in self._acked

    def was_late(self, ack_wait: float, now: float) -> None:
        """A copy of a message came, although `ack_wait` covers the way as it was known.

        Where the server is near, a stop of this process was the cause, and is over.
        """
        if self._transfers.is_far:
            self._transfers.was_late(ack_wait, now)

    def lost(self) -> None:
        """The connection is lost: acks may be lost with it."""
        self._acked = RecentIds()


def _key(message: LaneMessage) -> str:
    # A stream that is made anew counts from 1 again, at another time.
    return f"{message.sequence}/{message.stored}"
