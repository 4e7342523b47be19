"""A message that its sender, on the same host, has handed over: it is stored in its lane only if it
is refused, or not done in good time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from swarm.lanes.message import LaneMessage

# What whoever handed a message over is told of it, once: all is done; it was not taken, or is given
# up; a later lane has what came of it.
DONE, REFUSED, PASSED_ON = b"+ACK", b"-NAK", b"+WPI"


class Early:
    """Looks like a `LaneMessage` to a stage; what settles it settles the lane's copy, once that has
    come (`join`). on_end(early, done): it was settled before: the work is done, or it was given up
    and the lane's copy is to be worked on.

    reply: where its sender waits for a word. opened: what is borrowed for the work,
    and which the lane's copy needs as long as it can be handed out again. published: something went
    to the server that a word must not overtake. passed_on: a later lane has what came of it, and no
    answer tells its requester so.
    """

    __slots__ = (
        "_copy",
        "_held_at",
        "_on_end",
        "_over",
        "age",
        "id",
        "opened",
        "passed_on",
        "published",
        "received",
        "reply",
    )

    times_delivered = 1
    data = b""  # not kept: only a lane's message is ever a dead letter
    fresh = False
    direct = True

    def __init__(
        self,
        message_id: str,
        sent: int,
        received: int,
        on_end: Callable[[Early, bool], None],
        reply: str,
    ) -> None:
        self._on_end = on_end
        self._copy: LaneMessage | None = None
        self._over = False
        self._held_at = 0  # as of `LaneMessage`
        self.published = self.passed_on = False
        self.id = message_id
        self.received = received  # ns, as `sent`
        self.age = (received - sent) / 1e9
        self.opened: Sequence[Any] = ()
        self.reply = reply

    @property
    def settled(self) -> bool:
        return self._over if self._copy is None else self._copy.settled

    def join(self, copy: LaneMessage) -> bool:
        """The lane's copy came. True when the work was done by then, and the copy was acked."""
        self._copy = copy
        if self._held_at:
            copy.held(max(self._held_at, copy.received))
        return self._over and copy.ack()

    def ack(self) -> bool:
        """Done. False as long as a lane's copy may still come, here or elsewhere."""
        if self._copy is not None:
            return self._copy.ack()
        self._end(True)
        return False

    def held(self) -> None:
        """See `LaneMessage.held`."""
        if self._copy is not None:
            self._copy.held()
        else:
            self._held_at = time.monotonic_ns()

    def unheld(self) -> None:
        """See `LaneMessage.unheld`."""
        self._held_at = 0
        if self._copy is not None:
            self._copy.unheld()

    def nak(self, delay: float = 0.0) -> None:
        """Not done: the lane's copy is worked on, here or elsewhere."""
        if not self.withdraw() and self._copy is not None:
            self._copy.nak(delay)

    def term(self) -> None:
        """The lane's copy is not handed out again; one that has not come is judged by itself."""
        if not self.withdraw() and self._copy is not None:
            self._copy.term()

    def withdraw(self) -> bool:
        """Give it up, if the lane's copy has still to come."""
        if self._copy is not None:
            return False
        self._end(False)
        return True

    def _end(self, done: bool) -> None:
        if not self._over:
            self._over = True
            self._on_end(self, done)
