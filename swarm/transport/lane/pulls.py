"""The pulls of a lane: requests for messages that stand at the server until one comes. Pure."""

from __future__ import annotations

import json
from collections import deque

from swarm.transport.lane.message import ACK_AND_NEXT

GROUP = "g"  # the consumer's one priority group
EXPIRES = 1.0  # seconds; a vanished node's pulls attract messages no longer than this
# Seconds, in the largest fleets: a parked pull that runs out costs the server three messages, and
# the pulls of a thousand nodes a sixth of a core at one second.
MOST_EXPIRES = 10.0
NODES_A_SECOND = 50  # living nodes for each second of a pull
GRACE = 1.0  # seconds; a pull that is unanswered so long past its expiry was lost


class Pulls:
    """How a pull is written, and how many messages are asked for.

    subject: where the server takes pulls. inbox: where it sends messages, and the ends of pulls,
    to. priority: 0 is served first. `ack_and_next`
    settles a message and asks for one more in the same publish. `standing`: when each message
    was asked for that has not come. Times are seconds of any monotonic clock.
    """

    __slots__ = (
        "_longest",
        "_looked",
        "_one",
        "_priority",
        "ack_and_next",
        "expires",
        "inbox",
        "standing",
        "subject",
    )

    def __init__(self, subject: str, inbox: str, priority: int) -> None:
        self.subject = subject
        self.inbox = inbox
        self.expires = EXPIRES
        self._priority = priority
        self._one = self._encode(1)
        self.ack_and_next = ACK_AND_NEXT + b" " + self._one
        self.standing: deque[float] = deque()  # when each message was asked for
        self._longest = EXPIRES  # of the pulls that stand
        self._looked = 0.0  # the time of the last `forget_lost`

    def set_priority(self, priority: int) -> None:
        """Of all pulls from now on; those that stand keep theirs until they end."""
        self._priority = priority
        self._one = self._encode(1)
        self.ack_and_next = ACK_AND_NEXT + b" " + self._one

    def last(self, seconds: float) -> None:
        """Let pulls stand for so long from now on."""
        if seconds != self.expires:
            self.expires = seconds
            self._longest = max(self._longest, seconds)
            self._one = self._encode(1)
            self.ack_and_next = ACK_AND_NEXT + b" " + self._one

    def body(self, count: int) -> bytes:
        """A pull for `count` messages, as the server reads it."""
        return self._one if count == 1 else self._encode(count)

    def asked(self, count: int, now: float) -> None:
        """`count` messages were asked for."""
        self.standing.extend([now] * count)

    def answered(self) -> float | None:
        """A message came; returns when it was asked for. The server may send one unasked: None."""
        return self.standing.popleft() if self.standing else None

    def ended(self, count: int) -> None:
        """The oldest pulls have ended: `count` of their messages will not come."""
        for _ in range(min(count, len(self.standing))):
            self.standing.popleft()

    def forget_lost(self, now: float) -> None:
        """Forget messages that were asked for so long ago that their pull must have been lost.

        The time of the call before decides: behind a stop of this process, answers may lie in the
        socket that nobody has read.
        """
        lost, self._looked = self._looked - self._longest - GRACE, now
        while self.standing and self.standing[0] < lost:
            self.standing.popleft()

    def clear(self) -> None:
        """None stands at the server any more."""
        self.standing.clear()

    def _encode(self, count: int) -> bytes:
        fields = {"expires": int(self.expires * 1e9), "group": GROUP, "priority": self._priority}
        return json.dumps({"batch": count, **fields}).encode()


def expires_for(nodes: int) -> float:
    """How long a pull stands in a fleet of so many living nodes, seconds."""
    return min(MOST_EXPIRES, max(EXPIRES, float(nodes // NODES_A_SECOND)))


def unanswered(headers: bytes) -> int:
    """How many messages of a pull had not come when it ended, from its end's headers."""
    _, _, rest = headers.partition(b"Nats-Pending-Messages: ")
    digits = rest.partition(b"\r\n")[0]
    return int(digits) if digits.isdigit() and len(digits) < 10 else 1
