"""A failure of learning is told, and learning is tried again with the model that is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import nodes.learning.duty
from nodes.config import NodeConfig
from nodes.learning.duty import Learning
from nodes.learning.options import LearnOptions
from shards.split.split import split
from shards.zoo.fresh_head import digits_with_fresh_head
from swarm.errors import NotFound
from swarm.model import ModelInfo
from swarm.subjects import Subjects


class Scene:
    """A node that learns fresh@1, whose files come one by one. broken: what the registry raises."""

    def __init__(self, broken: Exception | None = None) -> None:
        self.model = split(digits_with_fresh_head(), name="fresh", stages=2, bandwidth=1e6)
        self.broken = broken
        self.fetched: list[str] = []
        self.told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        anything: Any = None
        mesh: Any = SimpleNamespace(link=None, subjects=Subjects("default"), registry=self)
        versions: Any = SimpleNamespace(serving={"1": None}, loader=SimpleNamespace(artifacts=self))
        connection: Any = SimpleNamespace(
            mesh=mesh,
            config=NodeConfig("learner", "fresh"),
            id="learner-1",
            membership=None,
            events=SimpleNamespace(tell=self._tell),
        )
        self.learning = Learning(connection, LearnOptions(), anything, versions)

    def _tell(self, kind: str, detail: dict[str, Any]) -> None:
        self.told.put_nowait({"kind": kind} | detail)

    async def info(self, model: str, version: str) -> ModelInfo:
        if self.broken is not None:
            raise self.broken
        return ModelInfo.from_manifest(self.model.manifest.to_json())

    async def manifest(self, model: str, version: str) -> bytes:
        return self.model.manifest.to_json()

    def fetcher(self, manifest: Any) -> Callable[[str], bytes]:
        def fetch(name: str) -> bytes:
            self.fetched.append(name)
            return self.model.files[name]

        return fetch

    async def events(self, count: int) -> list[dict[str, Any]]:
        running = asyncio.create_task(self.learning.run())
        try:
            async with asyncio.timeout(30.0):
                return [await self.told.get() for _ in range(count)]
        finally:
            running.cancel()
            await asyncio.wait({running}, timeout=5.0)


@pytest.mark.parametrize(
    ("broken", "detail"),
    [
        (KeyError("a defect"), "a defect: KeyError('a defect')"),
        (NotFound("no fresh@1"), "no fresh@1"),
    ],
)
async def test_what_cannot_be_learned_is_told_and_stands_in_the_status(
    broken: Exception, detail: str
) -> None:
    scene = Scene(broken)
    [event] = await scene.events(1)
    assert event == {"kind": "learning", "what": "failed", "detail": detail}
    assert scene.learning.status()["learning"]["problem"] == detail


async def test_learning_that_fails_again_and_again_fetches_the_model_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes.learning.duty, "RETRY_AFTER", 0.0)
    scene = Scene()  # without a link each attempt fails
    events = await scene.events(3)
    assert [event["what"] for event in events] == ["failed"] * 3
    assert sorted(scene.fetched) == sorted(set(scene.fetched)) != []
