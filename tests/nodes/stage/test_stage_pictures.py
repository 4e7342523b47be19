"""Pictures at a stage: decoded in a thread, one at a time; else they are like any request."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from stage_bench import FakeModel
from support.waiting import eventually

from nodes.stage.compute import Compute, Outcomes, StageOptions
from nodes.stage.counters import StageStats
from nodes.stage.jobs import Job
from swarm.errors import InvalidArgument, Status
from swarm.transport.api import Delivery
from swarm.wire.messages import Features


class Noted:
    """What came of each request, by its id."""

    def __init__(self) -> None:
        self.ended: dict[str, Any] = {}
        self.jobs: dict[str, Job] = {}

    def computed(
        self, job: Job, outputs: dict[str, np.ndarray], seconds: float, batch: int, weights: int
    ) -> None:
        self.jobs[job.features.id] = job
        self.ended[job.features.id] = outputs["x"][0, 0]

    def not_computed(self, job: Job, status: Status, reason: str) -> None:
        self.ended[job.features.id] = (status, reason)

    def cancelled(self, job: Job) -> None:
        self.ended[job.features.id] = "cancelled"


class Gated:
    """Decodes when the test lets it; the first byte is the value of all pixels."""

    def __init__(self) -> None:
        self.open, self.begun = threading.Event(), threading.Event()
        self.threads: list[int] = []
        self.error: Exception | None = None

    def comes_as_picture(self, tensors: Any) -> bool:
        return bool(tensors["x"].ndim == 1)

    def decoded(self, tensors: Any) -> dict[str, np.ndarray]:
        self.threads.append(threading.get_ident())
        self.begun.set()
        self.open.wait(30.0)
        if self.error is not None:
            raise self.error
        return {"x": np.full((1, 4), float(tensors["x"][0]))}


class Stage:
    """Runs of 5 ms, or short ones on the event loop."""

    def __init__(self, compute_ms: float) -> None:
        self.pictures, self.outcomes = Gated(), Noted()
        self.compute = Compute(
            1,
            FakeModel(compute_ms),
            StageOptions(),
            StageStats(),
            cast(Outcomes, self.outcomes),
            asyncio.get_running_loop().time,
            self.pictures,
        )

    def send(self, name: str, value: int = 1, *, intact: bool = True) -> None:
        tensors = {"x": np.full(9, value, np.uint8)}
        features = Features(name, "m", "1", 1, "_INBOX.r", 10**7, tensors)
        now = asyncio.get_running_loop().time() * 1e9
        delivery = SimpleNamespace(
            features=features, received=now, age=0.0, least_age=0.0, intact=lambda: intact
        )
        self.compute.take(cast(Delivery, delivery))


@pytest.mark.parametrize("compute_ms", [5.0, 0.01], ids=["by the worker", "inline"])
async def test_the_event_loop_goes_on_while_a_picture_is_decoded(compute_ms: float) -> None:
    stage = Stage(compute_ms)
    stage.send("a", 7)
    stage.send("b", 8)
    await eventually(stage.pictures.begun.is_set)
    assert (stage.compute.waiting, stage.outcomes.ended) == (2, {})
    assert stage.compute.running_since > 0, "a watchdog sees a picture that hangs"
    stage.pictures.open.set()
    await eventually(lambda: len(stage.outcomes.ended) == 2)
    assert stage.outcomes.ended == {"a": 8.0, "b": 9.0}
    assert set(stage.pictures.threads) - {threading.get_ident()} == set(stage.pictures.threads)
    job = stage.outcomes.jobs["a"]
    assert job.decode_us > 0
    assert job.features.tensors["x"].ndim == 1, "the audit hashes what came"
    stage.compute.close()


async def test_a_picture_that_nobody_waits_for_is_not_computed() -> None:
    stage = Stage(5.0)
    stage.send("a")
    stage.send("b")
    await eventually(stage.pictures.begun.is_set)
    stage.compute.cancel("a", 0.0)
    stage.compute.cancel("b", 0.0)
    stage.pictures.open.set()
    stage.send("c", 3)
    await eventually(lambda: "c" in stage.outcomes.ended)
    assert stage.outcomes.ended == {"a": "cancelled", "b": "cancelled", "c": 4.0}
    assert len(stage.pictures.threads) == 2, "one was decoded already, the other not at all"
    stage.compute.close()


async def test_pictures_in_hand_are_given_back_and_what_hangs_is_given_up() -> None:
    stage = Stage(5.0)
    stage.send("a")
    await eventually(stage.pictures.begun.is_set)
    assert [job.features.id for job in stage.compute.take_all_waiting()] == ["a"]
    assert stage.compute.waiting == 0
    stage.compute.abandon()
    stage.compute.restart()
    stage.pictures.open.set()
    stage.send("b", 5)
    await eventually(lambda: "b" in stage.outcomes.ended)
    assert stage.outcomes.ended == {"b": 6.0}
    stage.compute.close()


@pytest.mark.parametrize(
    ("error", "intact", "status"),
    [
        (InvalidArgument("torn"), True, Status.INVALID_ARGUMENT),
        (ValueError("a defect"), True, Status.INTERNAL),
        (InvalidArgument("torn"), False, Status.UNAVAILABLE),
    ],
)
async def test_a_picture_that_fails_is_answered_and_one_of_memory_that_is_gone_asked_for_again(
    error: Exception, intact: bool, status: Status
) -> None:
    stage = Stage(5.0)
    stage.pictures.error = error
    stage.pictures.open.set()
    stage.send("a", intact=intact)
    await eventually(lambda: "a" in stage.outcomes.ended)
    assert stage.outcomes.ended["a"] == (status, str(error))
    stage.compute.close()
