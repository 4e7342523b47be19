"""A learner with a real ledger and neighbours of its own making: rounds, minting, going back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.waiting import eventually

from nodes.learning.frozen import FrozenModel
from nodes.learning.guard import GRACE
from nodes.learning.head import Parameters
from nodes.learning.learner import Learner
from nodes.learning.options import LearnOptions, SamplePrivacy
from shards.split.split import SplitResult, split
from shards.zoo import digits_training
from shards.zoo.fresh_head import digits_with_fresh_head
from swarm.errors import InvalidArgument, NotFound
from swarm.learning.subjects import LearningSubjects
from swarm.learning.weights import Weights
from swarm.link import Link, jetstream
from swarm.model import ModelInfo

pytestmark = pytest.mark.integration
SUBJECTS = LearningSubjects("test")
QUICK = LearnOptions(every=0.05, mint_every=0.2, mint_grace=0.1)


@cache
def split_fresh() -> SplitResult:
    return split(digits_with_fresh_head(), name="fresh", stages=2, bandwidth=1e6)


def load_frozen() -> FrozenModel:
    result = split_fresh()
    info = ModelInfo.from_manifest(result.manifest.to_json())
    return FrozenModel.load(result.manifest, info, result.files.__getitem__)


def digits(*classes: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    images, labels = digits_training()
    some = np.isin(labels, classes)
    return {"image": images[some]}, labels[some]


class Alone:
    """An exchange whose neighbours are what a test says. It keeps what it was told."""

    def __init__(self, parameters: Parameters, epoch: int) -> None:
        self.parameters = parameters
        self.epoch = epoch
        self.copies: dict[str, Parameters] = {}
        self.participants: frozenset[str] = frozenset()
        self.counters: dict[str, Any] = {}
        self.steps = 0
        self.blocked: list[str] = []
        self.resets: list[int] = []

    @property
    def consensus(self) -> Parameters:
        return self.parameters

    def mix(self) -> None:
        """Neighbours of a test send nothing."""

    def step(self, update: Mapping[str, np.ndarray]) -> None:
        self.steps += 1
        self.parameters = {name: v + update[name] for name, v in self.parameters.items()}

    def catch_up(self) -> bool:
        return True

    def block(self, node: str) -> None:
        self.blocked.append(node)
        self.copies.pop(node, None)

    def reset(self, parameters: Mapping[str, np.ndarray], epoch: int) -> None:
        self.parameters, self.epoch = dict(parameters), epoch
        self.resets.append(epoch)

    async def run(self) -> None:
        await asyncio.Event().wait()


class Rig:
    def __init__(self, link: Link) -> None:
        self.link = link
        self.weights = Weights(link, SUBJECTS)
        self.events: list[dict[str, Any]] = []
        self.exchanges: list[Alone] = []
        self.busy = False
        self.asked_idle = 0

    def is_idle(self) -> bool:
        self.asked_idle += 1
        return not self.busy

    @asynccontextmanager
    async def learning(
        self,
        options: LearnOptions = QUICK,
        node: str = "learner-1",
        before: Learner | None = None,
    ) -> AsyncIterator[Learner]:
        def make(parameters: Parameters, epoch: int) -> Alone:
            self.exchanges.append(Alone(parameters, epoch))
            return self.exchanges[-1]

        joined = len(self.exchanges)
        frozen = load_frozen()
        learner = Learner(
            node,
            frozen,
            self.weights,
            make,
            options,
            before=before,
            in_background=in_thread,
            is_idle=self.is_idle,
            tell=lambda kind, detail: self.events.append(detail),
            seed=1,
        )
        task = asyncio.create_task(learner.run())
        try:
            await eventually(lambda: len(self.exchanges) > joined or task.done())
            yield learner
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            frozen.close()

    @property
    def exchange(self) -> Alone:
        return self.exchanges[-1]

    async def present(self) -> int:
        ledger = (await self.weights.read("fresh", "1")).document
        return 0 if ledger is None else ledger.n


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


@pytest.fixture
def rig(link: Link) -> Rig:
    return Rig(link)


async def test_what_was_taught_becomes_a_weight_version_that_answers_rightly(rig: Rig) -> None:
    async with rig.learning() as learner:
        inputs, labels = digits(1, 7)
        taught = await learner.take("", inputs, labels)
        assert taught.trained_on + taught.held_out == len(labels)
        assert taught.classes == (1, 7)
        await eventually(lambda: (learner.accuracy or 0) > 0.9 and learner.minted > 1)
        ledger = (await rig.weights.read("fresh", "1")).document
    assert ledger is not None
    record = ledger.records[-1]
    assert (record.by, record.taught) == ("learner-1", ("learner-1",))
    assert record.accuracy is not None
    assert record.accuracy > 0.8
    assert {key: rig.events[0][key] for key in ("what", "weights")} == {
        "what": "minted",
        "weights": 1,
    }
    frozen = load_frozen()
    head = frozen.learned(await rig.weights.tensors("fresh", "1", record))
    assert frozen.layout.accuracy(head, frozen.features(inputs), labels) > 0.9
    frozen.close()


async def test_a_learner_that_starts_begins_with_the_present_weights(rig: Rig) -> None:
    async with rig.learning() as learner:
        await learner.take("", *digits(1, 7))
        await eventually(lambda: learner.minted > 0)
    number = await rig.present()
    async with rig.learning(LearnOptions(every=0.05, mint_every=60), "learner-2") as second:
        assert second.n == number
        assert any(value.any() for value in rig.exchange.parameters.values())


async def test_a_learner_that_begins_again_mints_no_number_twice_though_the_ledger_is_lost(
    rig: Rig,
) -> None:
    async with rig.learning() as first:
        await first.take("", *digits(1, 7))
        await eventually(lambda: first.minted > 1)
    key = "ledger.fresh.1"
    more = {"KV-Operation": "DEL"}
    await jetstream.kv_put(rig.link, SUBJECTS.weights_bucket, key, b"", more=more)
    async with rig.learning(before=first) as second:
        await second.take("", *digits(1, 7))
        await eventually(lambda: second.minted > 0)
        ledger = (await rig.weights.read("fresh", "1")).document
    assert ledger is not None
    assert ledger.records[0].n == first.n + 1


async def test_going_back_resets_the_learner_to_those_weights_in_a_later_epoch(rig: Rig) -> None:
    async with rig.learning() as learner:
        await learner.take("", *digits(1, 7))
        await eventually(lambda: learner.minted > 1)
        await rig.weights.roll_back("fresh", "1", 0, by="operator", at=1.0)
        await eventually(lambda: rig.exchange.resets == [1])
        await eventually(lambda: learner.minted > 2)
        ledger = (await rig.weights.read("fresh", "1")).document
    assert ledger is not None
    assert ledger.epoch == 1


async def test_without_samples_nothing_is_learned_and_nothing_minted(rig: Rig) -> None:
    async with rig.learning() as learner:
        await eventually(lambda: learner.rounds > 8)
        assert not any(value.any() for value in rig.exchange.parameters.values())
        assert await rig.present() == 0


async def test_weights_that_are_worse_on_held_out_samples_are_not_minted(rig: Rig) -> None:
    slow = LearnOptions(every=30, mint_every=0.3)
    async with rig.learning() as learner:
        await learner.take("", *digits(1, 7))
        await eventually(lambda: (learner.accuracy or 0) > 0.95 and learner.minted > 1)
    number = await rig.present()
    rig.events.clear()
    async with rig.learning(slow, "learner-2") as second:
        await second.take("", *digits(1, 7))
        flipped = {name: -value for name, value in rig.exchange.parameters.items()}
        rig.exchange.parameters = flipped
        await eventually(lambda: bool(rig.events))
        assert await rig.present() == number
    assert rig.events[0]["what"] == "not-minted"
    assert "accuracy" in rig.events[0]["detail"]


async def test_a_neighbour_that_turns_hostile_is_blocked_with_an_event(rig: Rig) -> None:
    async with rig.learning() as learner:
        await learner.take("", *digits(1, 7))
        await eventually(lambda: (learner.accuracy or 0) > 0.95)
        good = rig.exchange.parameters
        rig.exchange.copies = {"a": good, "b": good, "evil": good}
        rounds = learner.rounds
        await eventually(lambda: learner.rounds > rounds + 3)
        rig.exchange.copies["evil"] = {name: -value for name, value in good.items()}
        await eventually(lambda: rig.exchange.blocked == ["evil"])
        assert learner.rounds < rounds + GRACE
    (event,) = [e for e in rig.events if e["what"] == "blocked"]
    assert event["sender"] == "evil"
    assert learner.refused == ["evil"]


async def test_own_weights_that_are_spoilt_go_back_to_the_last_good_ones(rig: Rig) -> None:
    async with rig.learning(LearnOptions(every=0.05, mint_every=60)) as learner:
        await learner.take("", *digits(1, 7))
        await eventually(lambda: (learner.accuracy or 0) > 0.95)
        good = rig.exchange.parameters
        rig.exchange.copies = {"a": good, "b": good}
        rounds = learner.rounds
        await eventually(lambda: learner.rounds > rounds + 15)
        rig.exchange.parameters = {name: -5 * value for name, value in good.items()}
        await eventually(lambda: learner.reverted == 1)
        await eventually(lambda: (learner.accuracy or 0) > 0.95)
    assert [e["what"] for e in rig.events] == ["reverted"]


async def test_a_test_measures_the_present_weights_and_keeps_nothing(rig: Rig) -> None:
    async with rig.learning() as learner:
        assert (await learner.test("", *digits(1, 7))).accuracy == 0.0
        await learner.take("", *digits(1, 7))
        kept = len(learner.samples.training[1])
        await eventually(lambda: (learner.accuracy or 0) > 0.95)
        tested = await learner.test("", *digits(1, 7))
        assert tested.accuracy is not None
        assert tested.accuracy > 0.9
        assert (await learner.test("", *digits(3))).accuracy == 0.0
        assert len(learner.samples.training[1]) == kept
        inputs, labels = digits(1, 7)
        with pytest.raises(InvalidArgument, match="one each"):
            await learner.test("", inputs, labels[:-1])


async def test_a_busy_node_does_not_train(rig: Rig) -> None:
    rig.busy = True
    async with rig.learning() as learner:
        await learner.take("", *digits(1, 7))
        asked = rig.asked_idle
        await eventually(lambda: rig.asked_idle > asked + 20)  # it would have begun by now
        assert (learner.training.steps, learner.rounds) == (0, 0)
        rig.busy = False
        await eventually(lambda: learner.training.steps > 0)


async def test_samples_that_cannot_be_learned_are_refused_whole(rig: Rig) -> None:
    async with rig.learning() as learner:
        inputs, labels = digits(1, 7)
        wrong: list[tuple[dict[str, np.ndarray], np.ndarray, str]] = [
            (inputs, labels + 4, "label 11 is out of range"),
            (inputs, labels[:-1], "one each is needed"),
            (inputs, np.full_like(labels, 3), "all labels are class 3"),
            ({"image": inputs["image"][:, :, 1:]}, labels, "must have shape"),
            ({"picture": inputs["image"]}, labels, "takes 'image'"),
            ({"image": inputs["image"] * np.float32(np.nan)}, labels, "not finite"),
        ]
        for images, given, message in wrong:
            with pytest.raises(InvalidArgument, match=message):
                await learner.take("", images, given)
        with pytest.raises(NotFound, match="learns fresh@1"):
            await learner.take("2", inputs, labels)
        assert learner.describe().classes == ()


async def test_private_learning_reports_its_epsilon_by_the_steps_that_were_made(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[tuple[SamplePrivacy, int]] = []

    def epsilon_of(
        privacy: SamplePrivacy, steps: int
    ) -> float:  # the real one takes seconds at first
        counted.append((privacy, steps))
        return steps / 1000

    monkeypatch.setattr("nodes.learning.learner.epsilon_of", epsilon_of)
    private = LearnOptions(
        every=0.05, mint_every=60, privacy=SamplePrivacy(2.0), epsilon_every=0.01
    )
    async with rig.learning(private) as learner:
        await learner.take("", *digits(1, 7))
        await eventually(lambda: learner.epsilon > 0)
        status = learner.status()
    told = {round(steps / 1000, 3): privacy for privacy, steps in counted}
    assert told[status["epsilon"]] == private.privacy
    assert status["delta"] == 1e-5


async def test_a_learner_waits_for_a_ledger_that_cannot_be_read_and_says_so(rig: Rig) -> None:
    await rig.weights.prepare()
    bucket, key = SUBJECTS.weights_bucket, "ledger.fresh.1"
    await jetstream.kv_put(rig.link, bucket, key, b"no ledger")

    async def mend() -> None:
        await eventually(lambda: any(e["what"] == "waiting" for e in rig.events))
        await jetstream.kv_put(rig.link, bucket, key, b"", more={"KV-Operation": "DEL"})

    mending = asyncio.create_task(mend())
    async with rig.learning():
        await mending
        assert rig.exchanges
