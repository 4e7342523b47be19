"""A request that goes on at the next stage of the same node, without a message between.

Its message stays that of the stage where it came: it is acknowledged when the result of the last
stage of the run is safe. A node that dies meanwhile costs no more than at a single stage: the lane
of the first stage hands the message out again, and equal stages compute the same anew.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from swarm.errors import Status, SwarmError
from swarm.transport.api import Delivery
from swarm.wire.messages import Features


class Continued:
    """A `Delivery` of the stage before, as the next stage takes it.

    on_end(it): is called once, when the work with it has ended here.
    """

    __slots__ = ("_before", "_on_end", "fast", "features", "received")

    age = 0.0
    least_age = 0.0
    times_delivered = 1

    def __init__(
        self, before: Delivery, received: int, on_end: Callable[[Continued], None]
    ) -> None:
        """received: `time.monotonic_ns()`; the request's budget counts from then."""
        self.features: Features = before.features
        self.fast = before.fast
        self.received = received
        self._before = before
        self._on_end = on_end

    @property
    def ended(self) -> bool:
        return self._before.ended

    def measure_age(self, then: Callable[[], None] | None = None) -> None:
        """It is known."""
        if then is not None:
            then()

    def go_on(self) -> Delivery:
        """The work with it has ended here: the message of the first stage."""
        self._on_end(self)
        return self._before

    def intact(self) -> bool:
        """Carried tensors view the memory of the first stage's message."""
        return self._before.intact()

    def release_credit(self) -> None:
        """It is the credit of the first stage."""
        self._before.release_credit()

    def take_credit(self) -> None:
        self._before.take_credit()

    def ack(self, passed_on: bool) -> bool:
        return self.go_on().ack(passed_on)

    def answer(
        self,
        outputs: dict[str, np.ndarray],
        urgent: bool,
        then: Callable[[SwarmError | None], None],
    ) -> None:
        self._before.answer(outputs, urgent, then)

    def fail(
        self, status: Status, text: str, stage: int, node: str, retry_after: float = 0.0
    ) -> bool:
        return self.go_on().fail(status, text, stage, node, retry_after)

    def hand_back(self, delay: float = 0.0) -> None:
        """The work begins anew at the first stage of the run."""
        self.go_on().hand_back(delay)

    def withdraw(self) -> bool:
        return self.go_on().withdraw()

    def drop(self) -> None:
        self.go_on().drop()

    def dead_letter(self, reason: str) -> None:
        self.go_on().dead_letter(reason)
