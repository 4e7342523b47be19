"""A gateway loads the versions that it is asked for, once, and lets go what nobody asks for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from support.waiting import GENEROUS

import nodes.versions.asked_models
import swarm
from nodes.config import NodeConfig
from nodes.life.node import Node
from nodes.versions.asked_models import LOADS_WITHIN, UNASKED_FOR, AskedModels
from nodes.versions.loaded import Loaded
from shards.split.split import split
from shards.zoo import digits_model
from swarm.errors import NotFound, Status, Unavailable
from swarm.model import ModelInfo, Spec, Stage
from swarm.wire.messages import Request

SPEC = (Spec("x", "FP32", (1,)),)


class Scene:
    """Models in simulated time. `go_on` lets loads end."""

    def __init__(self) -> None:
        self.now = 0.0
        self.begun: list[str] = []
        self.loaded: list[str] = []
        self.freed: list[str] = []
        self.missing: set[str] = set()
        self.takes = 0.0  # seconds
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.models = AskedModels(
            self._load, lambda loaded: self.freed.append(loaded.info.version), lambda: self.now
        )

    async def _load(self, model: str, version: str) -> Loaded:
        self.begun.append(version)
        await self.go_on.wait()
        await asyncio.sleep(self.takes)
        if version in self.missing:
            raise NotFound("no such version")
        self.loaded.append(version)
        info = ModelInfo(model, version, SPEC, SPEC, (Stage(1, SPEC, SPEC, 1.0),))
        return Loaded(info, {}, None, None, 0.0)

    async def ask(self, version: str) -> str:
        return (await self.models.lookup("m", version)).info.version

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.models.tend()


async def test_a_version_that_nobody_asks_for_any_more_is_unloaded_and_the_others_stay() -> None:
    scene = Scene()
    for version in ("1", "2"):
        await scene.ask(version)
    scene.later(UNASKED_FOR)
    assert scene.freed == [], "a request may still be under way"
    await scene.ask("2")
    scene.later(1.0)
    assert scene.freed == ["1"]
    scene.later(UNASKED_FOR)
    assert scene.freed == ["1", "2"]
    assert await scene.ask("1") == "1"
    assert scene.loaded == ["1", "2", "1"], "it is loaded again once somebody asks"


async def test_requests_that_come_together_load_a_version_once() -> None:
    scene = Scene()
    scene.go_on.clear()
    asking = [asyncio.create_task(scene.ask("1")) for _ in range(5)]
    await asyncio.sleep(0)
    scene.later(10 * UNASKED_FOR)
    scene.go_on.set()
    assert await asyncio.gather(*asking) == ["1"] * 5
    assert (scene.loaded, scene.freed) == (["1"], [])


async def test_a_version_that_cannot_be_loaded_is_tried_again_by_the_next_request() -> None:
    scene = Scene()
    scene.missing.add("1")
    with pytest.raises(NotFound):
        await scene.ask("1")
    scene.missing.clear()
    assert await scene.ask("1") == "1"
    scene.models.close()
    assert scene.freed == ["1"]


@pytest.mark.simulated
async def test_a_version_that_loads_for_longer_than_any_budget_is_loaded_once_and_answers() -> None:
    scene = Scene()
    scene.takes = 20.5  # seconds

    async def ask() -> str:
        async with asyncio.timeout(1.0):  # the request's budget
            return await scene.ask("1")

    answers: list[str | type] = []
    for _ in range(24):
        (answer,) = await asyncio.gather(ask(), return_exceptions=True)
        answers.append(answer if isinstance(answer, str) else type(answer))
    assert answers == [TimeoutError] * 20 + ["1"] * 4
    assert scene.begun == scene.loaded == ["1"]


@pytest.mark.simulated
async def test_a_load_that_hangs_is_given_up_and_the_next_request_begins_another() -> None:
    scene = Scene()
    scene.takes = 2 * LOADS_WITHIN
    with pytest.raises(Unavailable, match="too long"):
        await scene.ask("1")
    scene.takes = 0.0
    assert await scene.ask("1") == "1"


@pytest.mark.simulated
async def test_a_version_that_nobody_waits_for_any_more_is_kept_for_those_who_come_later() -> None:
    scene = Scene()
    scene.takes = UNASKED_FOR + 5
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await scene.ask("1")
    scene.later(UNASKED_FOR + 5)
    await asyncio.sleep(UNASKED_FOR + 5)
    scene.later(1.0)
    assert (scene.loaded, scene.freed) == (["1"], [])


async def test_what_loads_while_all_is_closed_ends_and_its_requests_are_told() -> None:
    scene = Scene()
    scene.go_on.clear()
    asking = asyncio.create_task(scene.ask("1"))
    await asyncio.sleep(0)
    scene.models.close()
    with pytest.raises(Unavailable):
        await asking
    assert scene.loaded == []


class Unloaded(logging.Handler):
    """Hears of versions that are unloaded."""

    def __init__(self) -> None:
        super().__init__()
        self.told = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("digits@1 is unloaded"):
            self.told.set()


@pytest.fixture
def unloaded(caplog: pytest.LogCaptureFixture) -> Iterator[Unloaded]:
    caplog.set_level(logging.INFO, logger="swarm.node")
    log, handler = logging.getLogger("swarm.node"), Unloaded()
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


@pytest.mark.integration
async def test_a_gateway_lets_go_by_itself_what_it_was_asked_for_once(
    url: str, unloaded: Unloaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes.versions.asked_models, "UNASKED_FOR", 0.05)
    monkeypatch.setattr("nodes.life.reconciler.WHILE_SERVING", 0.1)
    model = split(
        digits_model(), name="digits", version="1", stages=1, edge_layers=2, profile=False
    )
    async with swarm.connect(url, shm=False) as mesh:
        await mesh.registry.push(model.manifest.to_json(), model.files)
        await mesh.registry.promote("digits", "1")
        config = NodeConfig("gateway", nats=url, no_cache=True, allow_unsigned=True, shm=False)
        node = Node(config)
        stop = asyncio.Event()
        life = asyncio.create_task(node.run(stop))
        await asyncio.wait_for(node.became_ready.wait(), GENEROUS)
        for _ in range(2):
            unloaded.told.clear()
            wrong = await node.answerer.answer("digits", Request({}))
            assert wrong.status is Status.INVALID_ARGUMENT, "its inputs are known: it was loaded"
            await asyncio.wait_for(unloaded.told.wait(), GENEROUS)
        stop.set()
        await asyncio.wait_for(life, GENEROUS)
