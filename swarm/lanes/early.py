"""A message that came before its lane handed it out: the sender, on the same host, gave it a head
start beside storing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from swarm.lanes.delivery import Delivery


class Early:
    """Looks like a `Delivery` to a stage; what settles it settles the lane's copy, as soon as that
    has come (`join`). on_withdraw(early): it was given up; the lane's copy is then worked on.

    opened: what is borrowed for the work, and which the lane's copy needs as long as it can be
    handed out again.
    """

    __slots__ = ("_copy", "_on_withdraw", "_over", "age", "data", "id", "opened", "received")

    delivered = 1
    fresh = False
    direct = True

    def __init__(
        self,
        message_id: str,
        data: bytes,
        sent: int,
        received: int,
        on_withdraw: Callable[[Early], None],
    ) -> None:
        self._on_withdraw = on_withdraw
        self._copy: Delivery | None = None
        self._over = False
        self.id = message_id
        self.data = data
        self.received = received  # ns, as `sent`
        self.age = (received - sent) / 1e9
        self.opened: Sequence[Any] = ()

    @property
    def settled(self) -> bool:
        return self._over if self._copy is None else self._copy.settled

    def join(self, copy: Delivery) -> bool:
        """The lane's copy came. True when the work was done by then, and the copy was acked."""
        self._copy = copy
        return self._over and copy.ack()

    def ack(self) -> bool:
        """Done. False as long as the lane's copy has not come."""
        if self._copy is not None:
            return self._copy.ack()
        self._over = True
        return False

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
        self._over = True
        self._on_withdraw(self)
        return True
