"""What a stage works with: a request in hand, its options, and the model it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from shards.runtimes.runtime import CancelToken
from swarm.lanes import AnyDelivery
from swarm.local.lending import Opened
from swarm.wire.messages import Features

# Runs shorter than this are done on the event loop: handing over to a thread and back costs
# 60-120 us here, more than the run itself.
INLINE_BELOW = 0.0003  # seconds
# Runs shorter than this too, after a pause of IDLE_RUNS runs: behind large tensors, with cold
# caches, the way to the thread and back took 0.3 ms. Nothing else of a node suffers from such a
# stop (gossip waits 100 ms for an answer, a lane 60 ms for an ack); under load the thread lets
# requests gather.
INLINE_ALONE_BELOW = 0.010  # seconds
IDLE_RUNS = 1.2  # with 1, the throughput of a busy pipeline fell by 3 %; with 1.2 it did not


class StageModel(Protocol):
    """What a stage needs of a loaded shard (`shards.runtimes.load.StageRuntime`)."""

    batchable: bool
    compute_ms: float

    def check(self, tensors: Any) -> None: ...
    def run(self, tensors: Any, cancel: CancelToken | None = None) -> dict[str, np.ndarray]: ...
    def run_batch(
        self, requests: Any, cancel: CancelToken | None = None
    ) -> list[dict[str, np.ndarray]]: ...


@dataclass(slots=True)
class StageOptions:
    """max_batch: requests in one run. max_wait: seconds a request may wait for company.
    start_check: do not start what cannot finish inside its budget. quota: requests a second
    from one agent that stage 1 takes, 0 for any number. inline_below, inline_alone_below: seconds;
    shorter runs are done on the event loop, always or while little comes."""

    max_batch: int = 4
    max_wait: float = 0.0005
    start_check: bool = True
    inline_below: float = INLINE_BELOW
    inline_alone_below: float = 0.0
    quota: float = 0.0


@dataclass(slots=True, eq=False)
class Job:
    """A request in hand: its delivery, its features, and what it has cost so far."""

    delivery: AnyDelivery
    features: Features
    expires: float  # time.monotonic() when its budget ends
    arrived: float
    age: float  # seconds in the lane before it arrived
    queue_us: int = 0
    opened: Opened = field(default_factory=list)  # shared memory in use
    shape: tuple[Any, ...] = field(default=())

    @classmethod
    def of(cls, delivery: AnyDelivery, features: Features) -> Job:
        """A delivered request: its budget began to run when it was put into the lane."""
        arrived, age = delivery.received / 1e9, delivery.age
        return cls(delivery, features, arrived + features.budget_us / 1e6 - age, arrived, age)

    def most_spent(self, stage: int) -> str:
        """Where most of its time went, as text; it is about to begin `stage`."""
        lane_ms = self.age * 1e3
        slowest = max(self.features.all_hops, key=_hop_us, default={})
        if (hop_ms := _hop_us(slowest) / 1e3) > lane_ms:
            return f"{hop_ms:.1f} ms in stage {slowest.get('stage')}"
        return f"{lane_ms:.1f} ms in the lane of stage {stage}"


def is_fresh(delivery: AnyDelivery) -> bool:
    """Whether it came in fast mode."""
    return bool(getattr(delivery, "fresh", False))


def is_direct(delivery: AnyDelivery) -> bool:
    """Whether it came from a process of this host, without the server."""
    return bool(getattr(delivery, "direct", False))


def withdraw(delivery: AnyDelivery) -> bool:
    """Give a delivery up, if another copy of it will come."""
    give_up = getattr(delivery, "withdraw", None)
    return give_up is not None and bool(give_up())


def _hop_us(hop: dict[str, Any]) -> int:
    return int(hop.get("queue_us", 0) + hop.get("compute_us", 0))
