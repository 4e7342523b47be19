"""A node keeps at the mesh's present weight versions, and refuses what it cannot take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.waiting import GENEROUS

from nodes.duties.duties import BEGIN_AGAIN_AFTER, go_on
from nodes.learning.following import READ_EVERY, WeightFollower
from shards.errors import DeltaError, DeltaFault
from swarm.learning.subjects import LearningSubjects
from swarm.learning.weights import Weights
from swarm.link import Link, jetstream
from swarm.security.identity import Identity
from swarm.security.trusted_keys import AllowList

pytestmark = pytest.mark.integration
SUBJECTS = LearningSubjects("test")
BASE = "ab" * 32


class Runtimes:
    """What a node computes with."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str, int]] = []
        self.values: list[float] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.error: Exception | None = None
        self.changed = asyncio.Event()
        self.attempts = 0

    async def take(
        self, model: str, version: str, n: int, tensors: Mapping[str, np.ndarray], base: str = ""
    ) -> bool:
        self.changed.set()
        self.attempts += 1
        if self.error is not None:
            raise self.error
        self.taken.append((model, version, n))
        self.values.append(float(tensors["w"][0]) if tensors else 0.0)
        return True

    def tell(self, kind: str, detail: dict[str, Any]) -> None:
        self.events.append((kind, detail))
        self.changed.set()

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(GENEROUS):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


async def mint(link: Link, value: float, identity: Identity | None = None) -> None:
    weights = Weights(link, SUBJECTS, identity)
    await weights.prepare()
    tensors = {"w": np.full(3, value, np.float32)}
    held = await weights.read("m", "1")
    record = await weights.mint(
        "m", "1", BASE, held, tensors, by="n", at=1.0, accuracy=0.5, samples=9, taught=["n"]
    )
    assert record is not None


async def test_a_node_takes_what_is_there_before_it_serves_and_then_each_change(
    link: Link,
) -> None:
    runtimes, weights = Runtimes(), Weights(link, SUBJECTS)
    follower = WeightFollower(weights, runtimes.take, runtimes.tell)
    await mint(link, 1.0)
    await follower.version_was_loaded("m", "1")
    assert runtimes.taken == [("m", "1", 1)]
    running = asyncio.create_task(follower.run())
    await mint(link, 2.0)
    await runtimes.until(lambda: len(runtimes.taken) == 2)
    await weights.roll_back("m", "1", 1, by="operator", at=2.0)
    await runtimes.until(lambda: len(runtimes.taken) == 3)
    await weights.roll_back("m", "1", 0, by="operator", at=2.0)
    await runtimes.until(lambda: len(runtimes.taken) == 4)
    assert [n for _, _, n in runtimes.taken] == [1, 2, 3, 4]
    assert runtimes.values == [1.0, 2.0, 1.0, 0.0]
    follower.version_was_freed("m", "1")
    await mint(link, 5.0)
    await link.flush()
    assert len(runtimes.taken) == 4
    running.cancel()


async def test_a_mesh_that_never_learned_keeps_its_base(link: Link) -> None:
    runtimes = Runtimes()
    follower = WeightFollower(Weights(link, SUBJECTS), runtimes.take, runtimes.tell)
    await follower.version_was_loaded("m", "1")
    assert (runtimes.taken, runtimes.events) == ([], [])


async def test_a_version_that_is_followed_twice_is_watched_once(link: Link) -> None:
    runtimes, weights = Runtimes(), Weights(link, SUBJECTS)
    follower = WeightFollower(weights, runtimes.take, runtimes.tell)
    before = len(link.on_up)
    await follower.version_was_loaded("m", "1")
    once = len(link.on_up)
    await follower.version_was_loaded("m", "1")
    assert len(link.on_up) == once
    follower.version_was_freed("m", "1")
    assert len(link.on_up) == before


async def test_a_request_for_newer_weights_makes_the_node_look_again(link: Link) -> None:
    runtimes = Runtimes()
    follower = WeightFollower(Weights(link, SUBJECTS), runtimes.take, runtimes.tell)
    await mint(link, 1.0)
    await follower.version_was_loaded("m", "1")
    running = asyncio.create_task(follower.run())
    follower.weights_are_behind("another", "1", 2)  # not followed here: no matter
    follower.weights_are_behind("m", "1", 2)
    await runtimes.until(lambda: len(runtimes.taken) == 2)
    running.cancel()


async def test_weights_that_do_not_fit_are_refused_with_one_event_and_the_next_are_taken(
    link: Link,
) -> None:
    runtimes = Runtimes()
    follower = WeightFollower(Weights(link, SUBJECTS), runtimes.take, runtimes.tell)
    await follower.version_was_loaded("m", "1")
    running = asyncio.create_task(follower.run())
    runtimes.error = DeltaError(DeltaFault.SHAPE, "w is [4] here", "w")
    await mint(link, 1.0)
    await runtimes.until(lambda: runtimes.events)
    follower.weights_are_behind("m", "1", 1)
    await runtimes.until(lambda: runtimes.attempts == 2)
    assert [(kind, d["detail"]) for kind, d in runtimes.events] == [("rejected", "w is [4] here")]
    runtimes.error = None
    await mint(link, 2.0)
    await runtimes.until(lambda: runtimes.taken)
    assert runtimes.taken == [("m", "1", 2)]
    running.cancel()


async def test_weights_of_a_key_that_may_not_teach_are_refused(link: Link) -> None:
    runtimes, teacher = Runtimes(), Identity.make()
    weights = Weights(link, SUBJECTS, allowed=AllowList({teacher.public: ""}))
    follower = WeightFollower(weights, runtimes.take, runtimes.tell)
    await mint(link, 1.0, Identity.make())
    await follower.version_was_loaded("m", "1")
    assert runtimes.taken == []
    assert [kind for kind, _ in runtimes.events] == ["rejected"]
    running = asyncio.create_task(follower.run())
    await mint(link, 2.0, teacher)
    await runtimes.until(lambda: runtimes.taken)
    assert runtimes.values == [2.0]
    running.cancel()
    # Who starts when a stranger has minted on it goes by the teacher's, and says so.
    await mint(link, 3.0, Identity.make())
    late = Runtimes()
    await WeightFollower(weights, late.take, late.tell).version_was_loaded("m", "1")
    assert late.values == [2.0]
    assert [kind for kind, _ in late.events] == ["rejected"]


async def test_tensors_that_come_late_are_taken_when_they_are_there(link: Link) -> None:
    await mint(link, 1.0)
    bucket = SUBJECTS.weights_bucket
    (key,) = await jetstream.kv_keys(link, bucket, "tensors.m.1")
    value = await jetstream.kv_get(link, bucket, key)
    assert value is not None
    await jetstream.call(
        link, f"$JS.API.STREAM.PURGE.KV_{bucket}", {"filter": f"$KV.{bucket}.{key}"}
    )
    runtimes = Runtimes()
    follower = WeightFollower(Weights(link, SUBJECTS), runtimes.take, runtimes.tell)
    await follower.version_was_loaded("m", "1")
    assert (runtimes.taken, runtimes.events) == ([], [])
    await jetstream.kv_put(link, bucket, key, value)
    running = asyncio.create_task(follower.run())
    await runtimes.until(lambda: runtimes.taken)
    assert runtimes.values == [1.0]
    running.cancel()


class BadWeights:
    """A store whose ledger of version 1 meets a defect; that of version 2 is well."""

    def __init__(self) -> None:
        self.watches: list[Callable[[], None]] = []

    def watch(self, model: str, version: str, changed: Callable[[], None]) -> Callable[[], None]:
        self.watches.append(changed)
        return lambda: None

    async def read(self, model: str, version: str) -> Any:
        if version == "1":
            raise ValueError("cannot reshape")
        present = SimpleNamespace(n=7, base=BASE)
        return SimpleNamespace(document=SimpleNamespace(present=present), refusal=None)

    async def tensors(self, model: str, version: str, record: Any) -> dict[str, np.ndarray]:
        return {}


@pytest.mark.simulated
async def test_whatever_a_ledger_raises_it_is_refused_once_and_the_node_follows_the_others() -> (
    None
):
    weights, runtimes = BadWeights(), Runtimes()
    follower = WeightFollower(weights, runtimes.take, runtimes.tell)  # type: ignore[arg-type]
    running = asyncio.create_task(follower.run())
    await follower.version_was_loaded("m", "1")
    weights.watches[0]()
    await asyncio.sleep(3 * READ_EVERY)  # simulated
    await follower.version_was_loaded("m", "2")
    assert runtimes.taken == [("m", "2", 7)]
    [(kind, detail)] = runtimes.events
    assert (kind, detail["version"]) == ("rejected", "1")
    assert detail["detail"] == "a defect: ValueError('cannot reshape')"
    assert not running.done()
    running.cancel()


@pytest.mark.simulated
async def test_a_part_that_follows_others_begins_again_after_a_defect_and_tells_it_once() -> None:
    begun: list[float] = []
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()

    async def run() -> None:
        begun.append(loop.time())
        if len(begun) < 4:
            raise KeyError("shape")

    await go_on("standby", run, lambda kind, detail: told.append({"kind": kind} | detail))
    assert np.diff(begun) == pytest.approx([BEGIN_AGAIN_AFTER] * 3)
    reason = "standby met a defect, and begins again: KeyError('shape')"
    assert told == [{"kind": "rejected", "detail": reason}]
