"""A stage whose answers are kept: what is computed, what is not, and who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from support.fake_link import FakeLink
from support.waiting import eventually

from nodes.cache.runs import CachedRuns, around_runs
from nodes.cache.telling import COPY_TO
from nodes.stage.jobs import Job
from shards.cache.part import CacheBounds
from swarm.errors import Status
from swarm.link import LinkMessage
from swarm.model import ModelInfo, Stage
from swarm.wire.messages import Features, Result, result_parts

X = np.arange(4, dtype=np.float32)


@dataclass
class Model:
    weights_version: int = 0


@dataclass(eq=False)
class Asked:
    """A `Delivery`, as far as a stage's runs look at it."""

    features: Features
    received: int
    fast: bool = False
    times_delivered: int = 1
    age: float = 0.0
    least_age: float | None = 0.0
    ended: bool = False
    is_intact: bool = True

    def intact(self) -> bool:
        return self.is_intact

    def release_credit(self) -> None: ...
    def take_credit(self) -> None: ...


class Inside:
    """Computes when a test says so."""

    def __init__(self, model: Model, outcomes: Any) -> None:
        self.model = model
        self.outcomes = outcomes
        self.jobs: list[Job] = []
        self.taken = 0

    @property
    def waiting(self) -> int:
        return len(self.jobs)

    def take(self, delivery: Any) -> None:
        self.taken += 1
        self.jobs.append(Job(delivery, delivery.features, 0.0, 0.0, 0.0))

    def compute(self, job: Job | None = None, told: dict[str, Any] | None = None) -> None:
        job = job or self.jobs[0]
        job.told = told
        self.jobs.remove(job)
        outputs = {"y": job.inputs["x"] * (2 + self.model.weights_version)}
        self.outcomes.computed(job, outputs, 0.01, 1, self.model.weights_version)

    def fail(self) -> None:
        self.outcomes.not_computed(self.jobs.pop(0), Status.INTERNAL, "broken")

    def cancel(self, request_id: str, now: float) -> None:
        for job in [job for job in self.jobs if job.features.id == request_id]:
            self.jobs.remove(job)
            self.outcomes.cancelled(job)

    def take_all_waiting(self) -> list[Job]:
        jobs, self.jobs = self.jobs, []
        return jobs

    def use(self, model: Model) -> None:
        self.model = model

    def abandon(self) -> None:
        self.jobs.clear()


@dataclass
class Ends:
    """The `Outcomes` outside of it."""

    answers: dict[str, Any] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    hops: dict[str, dict[str, Any]] = field(default_factory=dict)

    def computed(self, job: Job, outputs: Any, seconds: float, batch: int, weights: int) -> None:
        self.answers[job.features.id] = (outputs["y"].tolist(), weights, job.is_whole_answer)
        self.hops[job.features.id] = job.told or {}
        job.delivery.ended = True  # type: ignore[misc]

    def not_computed(self, job: Job, *_: Any) -> None:
        self.failed.append(job.features.id)

    def stayed_behind(self, job: Job, weights: int) -> None:
        self.failed.append(job.features.id)

    def behind(self, weights: int) -> None: ...

    def cancelled(self, job: Job) -> None:
        self.dropped.append(job.features.id)


class StageOne:
    """Stage 1 of a version with so many stages, and time that a test moves."""

    def __init__(self, stages: int = 1, age: float = 60.0) -> None:
        self.now = 1000.0
        self.link = FakeLink()
        self.ends = Ends()
        made = tuple(Stage(n, (), (), 1.0) for n in range(1, stages + 1))
        info = ModelInfo("m", "1", (), (), made)

        def runs(stage: int, model: Any, options: Any, stats: Any, outcomes: Any, *_: Any) -> Any:
            self.inside = Inside(model, outcomes)
            return self.inside

        make = around_runs(CacheBounds(1 << 20, age), self.link, info, runs)
        runs_of: Any = make
        self.runs: CachedRuns = runs_of(1, Model(), None, None, self.ends, lambda: self.now)

    def ask(self, request: str, x: np.ndarray = X, budget: float = 5.0, **more: Any) -> Asked:
        times = more.pop("times_delivered", 1)
        features = Features(request, "m", "1", 1, "r", int(budget * 1e6), {"x": x}, **more)
        asked = Asked(features, int(self.now * 1e9), times_delivered=times)
        self.runs.take(asked)  # type: ignore[arg-type]
        return asked

    def hear(self, result: Result, hops: list[dict[str, Any]]) -> None:
        """The copy of an answer comes from the last stage."""
        data = b"".join(bytes(part) for part in result_parts(result, hops))
        self.link.deliver(LinkMessage(self.copies, "", None, data))

    @property
    def copies(self) -> str:
        """Where copies of answers come."""
        return next(said[COPY_TO] for said in self.ends.hops.values() if COPY_TO in said)

    @property
    def counters(self) -> Any:
        return self.runs.answers.counters


def hop(stage: int, weights: int = 0) -> dict[str, Any]:
    made = {"stage": stage, "node": "n", "queue_us": 0, "compute_us": 1}
    return made | ({"weights": weights} if weights else {})


async def test_what_was_answered_is_answered_again_without_a_run_until_it_is_too_old() -> None:
    stage = StageOne(age=60.0)
    stage.ask("a")
    stage.inside.compute()
    stage.now += 59.0
    stage.ask("b")
    assert stage.ends.answers["b"] == ([0, 2, 4, 6], 0, True)
    assert stage.ends.hops["b"] == {"cached_ms": 59000.0}
    assert stage.ends.hops["a"] == {}
    stage.now += 1.0
    stage.ask("c")
    assert "c" not in stage.ends.answers
    assert stage.inside.taken == 2
    assert (stage.counters.hits, stage.counters.misses, stage.counters.outdated) == (1, 2, 1)


@pytest.mark.parametrize("stages", [1, 2])
async def test_what_a_run_said_of_its_question_is_said_of_equal_ones(stages: int) -> None:
    stage = StageOne(stages)
    stage.ask("a")
    stage.ask("joined")
    stage.inside.compute(told={"unfamiliar": 2.5})
    if stages == 2:
        stage.hear(Result("a", "m", "1", outputs={"y": X}), [hop(1), hop(2)])
    stage.ask("hit")
    for name in ("joined", "hit"):
        assert stage.ends.hops[name] == {"unfamiliar": 2.5, "cached_ms": 0.0}


async def test_other_inputs_are_computed() -> None:
    stage = StageOne()
    stage.ask("a")
    stage.inside.compute()
    stage.ask("b", X + 1)
    stage.inside.compute()
    assert stage.ends.answers["b"] == ([2, 4, 6, 8], 0, False)


async def test_equal_requests_under_way_are_computed_once() -> None:
    stage = StageOne()
    for name in "abcd":
        stage.ask(name)
    stage.ask("other", X + 1)
    assert stage.inside.taken == 2
    assert stage.runs.waiting == 2 + 3
    stage.inside.compute()
    assert {stage.ends.answers[name][0][1] for name in "abcd"} == {2}
    assert stage.counters.joined == 3
    assert stage.runs.waiting == 1


@pytest.mark.parametrize("how", ["fail", "cancel", "torn"])
async def test_who_waits_for_a_request_that_is_not_answered_is_computed_itself(how: str) -> None:
    stage = StageOne()
    first = stage.ask("a")
    for name in "bc":
        stage.ask(name)
    if how == "fail":
        stage.inside.fail()
    elif how == "cancel":
        stage.runs.cancel("a", stage.now)
    else:
        first.is_intact = False
        stage.inside.compute()
    assert stage.inside.taken == 3
    while stage.inside.jobs:
        stage.inside.compute()
    assert {"b", "c"} <= stage.ends.answers.keys()
    assert stage.ends.failed == (["a"] if how == "fail" else [])
    stage.ask("d")
    # Nothing of the failure was kept.
    assert stage.ends.answers.get("d", ([0, 2],))[0][1] == 2


async def test_who_waits_may_be_cancelled_and_the_rest_are_answered() -> None:
    stage = StageOne()
    for name in "abc":
        stage.ask(name)
    stage.runs.cancel("b", stage.now)
    stage.inside.compute()
    assert stage.ends.dropped == ["b"]
    assert stage.ends.answers.keys() == {"a", "c"}


async def test_a_request_waits_for_another_one_for_a_share_of_its_own_budget() -> None:
    stage = StageOne()
    stage.ask("a", budget=60.0)
    stage.ask("b", budget=0.02)
    await eventually(lambda: stage.inside.taken == 2, "it is computed itself")
    stage.inside.compute(stage.inside.jobs[1])
    assert "b" in stage.ends.answers


@pytest.mark.parametrize(
    "more", [{"session": "s"}, {"shadow": True}, {"weights": 1}], ids=lambda more: str([*more])
)
async def test_sessions_copies_and_requests_for_newer_weights_are_computed(
    more: dict[str, Any],
) -> None:
    stage = StageOne()
    stage.ask("a")
    stage.inside.compute()
    stage.ask("b", **more)
    assert "b" not in stage.ends.answers
    stage.inside.compute()
    assert stage.counters.passed == 1


@pytest.mark.parametrize("again", [{"attempt": 2}, {"times_delivered": 2}])
async def test_a_second_try_does_not_wait_for_the_first(again: dict[str, int]) -> None:
    stage = StageOne()
    stage.ask("a")
    stage.ask("a", **again)
    stage.ask("b", **again)
    assert stage.inside.taken == 3


async def test_an_answer_of_older_weights_is_none() -> None:
    stage = StageOne()
    stage.ask("a")
    stage.inside.compute()
    stage.ask("led", X + 1)
    stage.runs.use(Model(1))  # type: ignore[arg-type]
    stage.ask("b")
    assert "b" not in stage.ends.answers
    # One under way began before: it may have been computed with either.
    stage.ask("late", X + 1)
    assert stage.inside.taken == 4
    for _ in range(3):
        stage.inside.compute()
    assert stage.ends.answers["b"] == ([0, 3, 6, 9], 1, False)
    stage.ask("c")
    assert stage.ends.answers["c"] == ([0, 3, 6, 9], 1, True)


async def test_a_session_of_equal_weights_keeps_its_answers() -> None:
    stage = StageOne()
    stage.ask("a")
    stage.inside.compute()
    stage.runs.use(replace(Model()))  # type: ignore[arg-type]
    stage.ask("b")
    assert "b" in stage.ends.answers


# --- the last stage is another one's -----------------------------------------------------


async def test_the_last_stage_tells_the_first_what_it_has_answered() -> None:
    stage = StageOne(stages=2)
    stage.ask("a")
    stage.ask("b")
    stage.inside.compute()
    assert stage.ends.hops["a"].keys() == {COPY_TO}
    assert "b" not in stage.ends.answers
    stage.hear(Result("a", "m", "1", outputs={"y": X}), [hop(1), hop(2)])
    stage.ask("c")
    assert stage.ends.answers["b"] == stage.ends.answers["c"] == (X.tolist(), 0, True)


@pytest.mark.parametrize(
    "hops", [[hop(1), hop(2, 1)], [hop(1, 1), hop(2, 1)], [hop(1)], [hop(2)], []]
)
async def test_an_answer_of_unlike_or_other_weights_or_of_a_part_of_the_stages_is_not_kept(
    hops: list[dict[str, Any]],
) -> None:
    stage = StageOne(stages=2)
    stage.ask("a")
    stage.inside.compute()
    stage.hear(Result("a", "m", "1", outputs={"y": X}), hops)
    stage.ask("b")
    assert "b" not in stage.ends.answers
    assert stage.inside.taken == 2


async def test_what_a_later_stage_could_not_compute_is_computed_for_each_who_waits() -> None:
    stage = StageOne(stages=2)
    stage.ask("a")
    stage.ask("b")
    stage.inside.compute()
    stage.hear(Result("a", "m", "1", Status.INTERNAL), [])
    assert stage.inside.taken == 2


async def test_words_of_strangers_are_passed_over() -> None:
    stage = StageOne(stages=2)
    stage.ask("a")
    stage.inside.compute()
    for data in (b"", b"\xff", b"{}"):
        stage.link.deliver(LinkMessage(stage.copies, "", None, data))
    stage.hear(Result("never asked", "m", "1", outputs={"y": X}), [hop(1), hop(2)])
    stage.ask("b", X + 1)
    assert stage.ends.answers.keys() == {"a"}


async def test_who_waits_is_computed_where_no_word_of_the_last_stage_comes() -> None:
    stage = StageOne(stages=2)
    stage.ask("a", budget=0.05)
    stage.inside.compute()
    stage.ask("b", budget=60.0)
    await eventually(lambda: stage.inside.taken == 2, "it is computed itself")


async def test_what_waits_is_handed_back_at_the_end() -> None:
    stage = StageOne()
    for name in "abc":
        stage.ask(name)
    assert [job.features.id for job in stage.runs.take_all_waiting()] == ["a", "b", "c"]
    assert stage.runs.waiting == 0
