"""What a version on trial fails goes to the version before, however that one was cut."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from swarm.errors import Status
from swarm.link import LinkOptions
from swarm.mesh import Mesh
from swarm.model import ModelInfo, Spec, Stage
from swarm.models.trials import Trials, TriedRequest
from swarm.requests.request import Ask
from swarm.wire.messages import Result

SPEC = (Spec("x", "FP32", (1,)),)
STAGE = Stage(1, SPEC, SPEC, 1.0)
BEFORE = ModelInfo("m", "1", SPEC, SPEC, (STAGE,), edge=Stage(0, SPEC, SPEC, 0.1))
NEW = ModelInfo("m", "2", SPEC, SPEC, (STAGE,))


class Failing(Trials):
    """Version 2 is on trial, and has failed whatever it answers."""

    follows = True

    async def ask(self, tried: TriedRequest) -> Result:
        result = await tried.request
        assert tried.instead is not None
        return await tried.instead("1") or result


class Falling(Mesh):
    """A mesh whose version 2 always fails; it notes what goes to lanes, and to `infer.<model>`."""

    def __init__(self) -> None:
        super().__init__(LinkOptions())
        self.catalog.fixed["m"] = NEW
        self.silent = False  # the registry
        self.by_lanes: list[str] = []
        self.by_service: list[str] = []
        self.rollouts = Failing()
        self.requester = self  # type: ignore[assignment]
        self.catalog.info = self.version  # type: ignore[method-assign]

    async def version(self, model: str, version: str) -> ModelInfo:
        if self.silent:
            await asyncio.sleep(60.0)
        return BEFORE

    async def infer(self, ask: Ask) -> Result:  # type: ignore[override]
        self.by_lanes.append(ask.info.version)
        return Result(ask.id, "m", "2", status=Status.INTERNAL)

    async def ask_service(self, model: str, *_: Any, **__: Any) -> Result:
        self.by_service.append(model)
        return Result("r", "m", "1")


@pytest.mark.simulated
async def test_a_registry_that_is_silent_does_not_hold_a_failed_request_beyond_its_budget() -> None:
    mesh = Falling()
    mesh.silent = True
    began = asyncio.get_running_loop().time()
    result = await mesh.ask("m", {"x": np.zeros(1, np.float32)}, 0.5)
    assert (result.status, mesh.by_lanes, mesh.by_service) == (Status.INTERNAL, ["2"], [])
    assert asyncio.get_running_loop().time() - began == pytest.approx(0.5)


async def test_a_version_whose_first_layers_are_an_edges_is_not_asked_by_its_lanes() -> None:
    mesh = Falling()
    result = await mesh.ask("m", {"x": np.zeros(1, np.float32)})
    assert (result.status, mesh.by_lanes, mesh.by_service) == (Status.OK, ["2"], ["m@1"])
