"""A stage's work with one request: a delivery, its budget, and what it has cost so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from swarm.transport.api import Delivery, Sending
from swarm.wire.messages import Features

# Of its budget, from which on the time that a request seems to have lain in the lane is measured
# again, and counts. To measure less than that would cost more than it tells.
MATERIAL = 0.05


@dataclass(slots=True, eq=False)
class Job:
    """One request in hand.

    arrived, ends: `time.monotonic()`; when its budget ends, without the time in the lane until that
    is proven. age: seconds in the lane before it arrived, as far as is known. is_sure: whether as
    much of them as counts against the budget is counted. queue_us: microseconds from the lane to
    the run, without decode_us: those in which its picture was decoded. inputs: of its run;
    `features` keeps what came. shape: shapes of its tensors but for axis 0; requests of equal shape
    run together. started: `time.monotonic()`, when its run began. idle_since: when the run before
    that ended. sending: its result under way to the next stage. ended: its work here is over.
    is_own_fault: its run failed and known input passed: what it asks for cannot be computed. told:
    further fields of its hop, None for none. refused: why it is not answered
    although it ran. is_whole_answer: what came of it are the outputs of
    the model, whatever the stage. steps: what the steps inside its run made, by name, None for what
    was left out; they are for the record.
    """

    delivery: Delivery
    features: Features
    ends: float
    arrived: float
    age: float
    is_sure: bool = True
    queue_us: int = 0
    decode_us: int = 0
    started: float = 0.0
    idle_since: float = 0.0
    shape: tuple[Any, ...] = field(default=())
    sending: Sending | None = None
    ended: bool = False
    is_own_fault: bool = False
    told: dict[str, Any] | None = None
    is_whole_answer: bool = False
    steps: Mapping[str, Mapping[str, np.ndarray] | None] | None = None
    refused: str = ""
    inputs: dict[str, np.ndarray] = field(init=False)

    @classmethod
    def of(cls, delivery: Delivery) -> Job:
        """Of a message that has come. Its budget began to run when it was put into the lane."""
        features, age = delivery.features, delivery.age
        arrived, budget = delivery.received / 1e9, features.budget_us / 1e6
        material = age > MATERIAL * budget
        least = delivery.least_age if material else None
        ends = arrived + budget - (least or 0.0)
        return cls(delivery, features, ends, arrived, age, not material or least is not None)

    def __post_init__(self) -> None:
        self.inputs = self.features.tensors

    @property
    def expires(self) -> float:
        """`time.monotonic()` when its budget ends."""
        if not self.is_sure and (least := self.delivery.least_age) is not None:
            self._count(least)
        return self.ends

    def take_as_new(self) -> None:
        """Nobody can tell how long it lay in the lane: none of it counts."""
        if not self.is_sure:
            self._count(self.delivery.least_age or 0.0)

    def _count(self, least: float) -> None:
        self.is_sure = True
        self.ends -= least
        self.age = max(least, self.delivery.age)

    @property
    def batch_wait_us(self) -> int:
        """Of `queue_us`: no run was under way, and the request waited for company, or for a
        processor."""
        return int((self.started - max(self.arrived, self.idle_since)) * 1e6)

    def most_spent(self, stage: int, now: float) -> str:
        """Where most of its time went, as text, when it is about to begin `stage`."""
        slowest = max(self.features.all_hops, key=_hop_us, default={})
        ms, where = max(
            (self.age * 1e3 if self.is_sure else 0.0, f"in the lane of stage {stage}"),
            ((now - self.arrived) * 1e3, f"waiting at stage {stage}"),
            (_hop_us(slowest) / 1e3, f"in stage {slowest.get('stage')}"),
        )
        return f"{ms:.1f} ms {where}"


def _hop_us(hop: dict[str, Any]) -> int:
    return int(hop.get("queue_us", 0) + hop.get("compute_us", 0))
