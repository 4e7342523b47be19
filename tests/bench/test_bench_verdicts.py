"""The commands that judge: which results make `failover` and `overload` fail."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from bench.cost.overload import OVERLOAD, OverloadPlan
from bench.cost.priorities import Asked, PrioritiesPlan, figures
from bench.cost.priorities import misses as misses_of_priorities
from bench.faults.failover import FAILOVER, FailoverPlan, scenario_entry
from bench.faults.failover_figures import Trial, scenario_figures
from bench.faults.scenarios import Scenario
from swarm.errors import Unavailable

MODULE = "bench.faults.failover"


class FakeMeshes:
    """In place of meshes of real processes: counts them, and answers from records made by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started = 0
        self.lost: set[str] = set()  # scenarios in which one request is lost
        self.failing: set[str] = set()  # scenarios in which the mesh does not come up again
        monkeypatch.setattr(f"{MODULE}.start_rig", self.start_rig)
        monkeypatch.setattr(f"{MODULE}.play_scenario", self.play_scenario)

    @asynccontextmanager
    async def start_rig(self, *_: object) -> AsyncIterator[None]:
        self.started += 1
        yield None

    async def play_scenario(
        self, rig: None, scenario: Scenario, trials: int, rate: float
    ) -> dict[str, Any]:
        if scenario.name in self.failing:
            raise Unavailable("shard-2 did not come up")
        sent = [number * 0.01 for number in range(250)]
        requests = [
            {"due": at, "sent": at, "done": at + 0.002, "status": "OK", "attempt": 1}
            | {"wrong": False, "nodes": []}
            for at in sent
        ]
        if scenario.name in self.lost:
            requests[120]["status"] = "UNAVAILABLE"
        trial = Trial(quiet=0.0, fault=1.0, end=2.0, ready_again=2.5)
        figures = scenario_figures(requests, [], [trial], {"1": 60.0}, scenario.targets)
        return scenario_entry(scenario, status="ok", **figures)


def test_a_lost_request_fails_the_whole_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    meshes = FakeMeshes(monkeypatch)
    names = ["kill-shard-1", "kill-shard-2"]
    assert FAILOVER.run(FailoverPlan(1, names)) == 0
    meshes.lost = {"kill-shard-2"}
    assert FAILOVER.run(FailoverPlan(1, names)) == 1
    shown = capsys.readouterr().err
    assert "missed: kill-shard-2: lost: 1, limit 0" in shown
    assert meshes.started == 2  # one for both scenarios of a layout


def test_after_a_scenario_that_fails_the_others_get_a_new_mesh(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    meshes = FakeMeshes(monkeypatch)
    meshes.failing = {"kill-shard-1"}
    assert FAILOVER.run(FailoverPlan(1, ["kill-shard-1", "kill-shard-2"]), as_json=True) == 1
    scenarios = json.loads(capsys.readouterr().out)["scenarios"]
    assert scenarios["kill-shard-1"]["status"] == "failed"
    assert "did not come up" in scenarios["kill-shard-1"]["reason"]
    assert scenarios["kill-shard-2"]["passed"]
    assert meshes.started == 2


def test_an_unknown_scenario_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    meshes = FakeMeshes(monkeypatch)
    assert FAILOVER.run(FailoverPlan(1, ["kill-the-moon"])) == 1
    assert "no scenario kill-the-moon" in capsys.readouterr().err
    assert meshes.started == 0


@pytest.mark.parametrize(("share", "code"), [(0.86, 0), (0.84, 1)])
def test_overload_passes_when_goodput_stays_near_the_capacity(
    share: float, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = replace(OVERLOAD, measure=lambda plan, progress: {"goodput_share": share})
    assert measured.run(OverloadPlan()) == code
    assert "goodput share" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("runs", "bound"),
    [((0.02, 0.02, 0.02), 2.0), ((0.02, 0.01, 0.01), 4 / 3), ((0.01, 0.02, 0.01), 1.5)],
)
def test_a_high_request_may_wait_for_a_run_of_each_stage_up_to_the_last_saturated_one(
    runs: tuple[float, ...], bound: float
) -> None:
    quiet = [Asked(True, True, 0.06)] * 15
    none = [Asked(n < 5, True, 0.5) for n in range(100)]
    high = [Asked(n < 15, True, 0.06 * bound if n < 15 else 0.5) for n in range(100)]
    found = figures(PrioritiesPlan(runs=runs), {"quiet": [quiet], "none": [none], "with": [high]})
    assert found["p99_ratio"] == pytest.approx(found["p99_bound"], abs=0.002)
    assert found["p99_bound"] == pytest.approx(bound, abs=0.002)
    assert found["goodput_ratio"] == 1.0
    assert found["rest_ratio"] == found["rest_bound"] == pytest.approx(85 / 95, abs=0.001)
    assert misses_of_priorities({"ways": {"client": found}}) == []
    slow = found | {"p99_ratio": 1.2 * bound, "goodput_ratio": 0.9}
    assert len(misses_of_priorities({"ways": {"client": slow}})) == 2
