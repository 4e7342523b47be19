"""Runs of a stage with something around them, which hears of each request and of its outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nodes.stage.compute import Outcomes, StageModel, StageRuns
from nodes.stage.endless import OnLoop
from nodes.stage.jobs import Job
from swarm.errors import Status
from swarm.transport.api import Delivery


class AroundRuns:
    """A `StageRuns` that is the one inside of it, to whom it is the `Outcomes`."""

    def __init__(
        self,
        inside: Callable[[Outcomes], StageRuns],
        outcomes: Outcomes,
    ) -> None:
        self._outcomes = outcomes
        self._inside = inside(self)

    @property
    def model(self) -> StageModel:
        return self._inside.model

    @property
    def on_loop(self) -> OnLoop:
        return self._inside.on_loop

    @property
    def waiting(self) -> int:
        return self._inside.waiting

    @property
    def running_since(self) -> float:
        return self._inside.running_since

    def take(self, delivery: Delivery) -> None:
        self._inside.take(delivery)

    def use(self, model: StageModel) -> None:
        self._inside.use(model)

    def cancel(self, request_id: str, now: float) -> None:
        self._inside.cancel(request_id, now)

    def end_runs(self) -> None:
        self._inside.end_runs()

    def take_all_waiting(self) -> list[Job]:
        return self._inside.take_all_waiting()

    def abandon(self) -> None:
        self._inside.abandon()

    def restart(self) -> None:
        self._inside.restart()

    def close(self) -> None:
        self._inside.close()

    # --- outcomes ---------------------------------------------------------------------

    def computed(
        self, job: Job, outputs: dict[str, np.ndarray], seconds: float, batch: int, weights: int
    ) -> None:
        self._outcomes.computed(job, outputs, seconds, batch, weights)

    def behind(self, weights: int) -> None:
        self._outcomes.behind(weights)

    def stayed_behind(self, job: Job, weights: int) -> None:
        self._outcomes.stayed_behind(job, weights)

    def not_computed(self, job: Job, status: Status, reason: str, retry_after: float = 0.0) -> None:
        self._outcomes.not_computed(job, status, reason, retry_after)

    def cancelled(self, job: Job) -> None:
        self._outcomes.cancelled(job)


def tell_hop(job: Job, **fields: Any) -> None:
    """The hop of the job says this besides."""
    job.told = {**(job.told or {}), **fields}
