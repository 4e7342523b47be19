"""Each request that is traced ends its trace once, however it ends."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from noted_tracer import NotedTracer
from support.waiting import GENEROUS

from swarm.link import LinkOptions
from swarm.mesh import Mesh
from swarm.model import ModelInfo, Spec, Stage
from swarm.requests.request import Ask
from swarm.wire.messages import Result

SPEC = (Spec("x", "FP32", (1,)),)
INFO = ModelInfo("m", "1", SPEC, SPEC, (Stage(1, SPEC, SPEC, 1.0),))
INPUTS = {"x": np.zeros(1, np.float32)}


class Silent(Mesh):
    """A mesh in which no stage answers."""

    def __init__(self, tracer: NotedTracer) -> None:
        super().__init__(LinkOptions(), tracer=tracer)
        self.catalog.fixed["m"] = INFO
        self.asked = asyncio.Event()
        self.requester = self  # type: ignore[assignment]

    async def infer(self, ask: Ask) -> Result:  # type: ignore[override]
        self.asked.set()
        return await asyncio.get_running_loop().create_future()


async def test_the_trace_of_a_request_that_its_caller_cancels_says_so() -> None:
    tracer = NotedTracer()
    mesh = Silent(tracer)
    asking = asyncio.create_task(mesh.ask("m", INPUTS))
    await asyncio.wait_for(mesh.asked.wait(), GENEROUS)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    [trace] = tracer.begun
    assert isinstance(trace.ended, asyncio.CancelledError)


async def test_a_request_whose_caller_waits_no_longer_than_a_timeout_ends_its_trace_too() -> None:
    tracer = NotedTracer()
    mesh = Silent(tracer)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(mesh.ask("m", INPUTS), 0.01)
    [trace] = tracer.begun
    assert isinstance(trace.ended, asyncio.CancelledError)
