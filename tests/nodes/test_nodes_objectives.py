"""Who answers requests measures a model's objective, and tells when it burns and when no more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodes.cli.objective import objective_of, share
from nodes.cli.status import objective_lines
from nodes.requests.objectives import MOST_MODELS, Objectives
from swarm.errors import InvalidArgument, Status
from swarm.fleet.documents import Faults, read_status
from swarm.flow.objective import WINDOWS, Objective
from swarm.wire.messages import Request, Result


class Scene:
    def __init__(self, **objectives: Objective) -> None:
        self.objectives = objectives
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.forgotten: set[str] = set()  # models whose desired state has to be read again
        self.gossiped: list[tuple[str, str]] = []
        self.measured = Objectives(
            self,
            lambda kind, detail: self.told.append((kind, detail)),
            lambda model, what: self.gossiped.append((model, what)),
        )

    def objective(self, model: str) -> Objective | None:
        return None if model in self.forgotten else self.objectives.get(model)

    def knows(self, model: str) -> bool:
        return model not in self.forgotten

    def answer(self, model: str, status: Status = Status.OK, times: int = 1) -> None:
        for _ in range(times):
            result = Result("r", model, "1", status=status, latency=0.001)
            self.measured.answered(model, Request({}), result)


def test_an_event_tells_that_an_objective_burns_once_and_once_that_it_ends() -> None:
    scene = Scene(m=Objective(errors=0.01))
    scene.answer("m", times=50)
    scene.measured.judge(10.0)
    assert scene.told == []
    scene.answer("m", Status.UNAVAILABLE, times=50)
    for now in (40.0, 42.0):
        scene.measured.judge(now)
    [(kind, detail)] = scene.told
    assert (kind, detail["model"], detail["burning"]) == ("slo", "m", "errors")
    assert "50 times as fast" in detail["detail"]
    scene.answer("m", times=20_000)
    scene.measured.judge(400.0)
    scene.measured.judge(3600.0)
    assert scene.told[-1][1]["burning"] == ""
    assert len(scene.told) == 2
    assert scene.gossiped == [("m", "errors"), ("m", "")]


def test_faults_of_the_requester_are_none_of_the_model() -> None:
    scene = Scene(m=Objective(errors=0.01))
    scene.answer("m", Status.INVALID_ARGUMENT, times=50)
    scene.measured.judge(10.0)
    [slo] = scene.measured.status()["slo"]
    assert (slo["requests"], slo["failed"]) == (50, 0)


def test_models_without_an_objective_are_not_measured_and_others_in_bounds() -> None:
    scene = Scene(**{f"m{n}": Objective(1.0) for n in range(MOST_MODELS + 5)})
    scene.answer("none")
    for model in scene.objectives:
        scene.answer(model)
    scene.measured.judge(1.0)
    assert len(scene.measured.status()["slo"]) == MOST_MODELS
    assert Scene().measured.status() == {}


def test_a_new_objective_begins_anew() -> None:
    scene = Scene(m=Objective(errors=0.01))
    scene.answer("m", Status.INTERNAL, times=50)
    scene.objectives["m"] = Objective(errors=0.5)
    scene.answer("m")
    scene.measured.judge(1.0)
    [slo] = scene.measured.status()["slo"]
    assert (slo["errors"], slo["requests"], slo["failed"]) == (0.5, 1, 0)


def test_an_objective_that_its_owner_removed_is_gone_from_the_status_and_burns_no_more() -> None:
    scene = Scene(m=Objective(errors=0.01), other=Objective(errors=0.01))
    scene.answer("m", Status.INTERNAL, times=50)
    scene.answer("other")
    scene.measured.judge(1.0)
    assert [detail["burning"] for _, detail in scene.told] == ["errors"]
    del scene.objectives["m"]
    scene.measured.judge(3.0)
    assert [slo["model"] for slo in scene.measured.status()["slo"]] == ["other"]
    assert [detail["burning"] for _, detail in scene.told] == ["errors", ""]
    del scene.objectives["other"]
    scene.measured.judge(5.0)
    assert scene.measured.status() == {}
    assert len(scene.told) == 2, "an objective that did not burn ends without an event"


def test_an_objective_stays_while_its_desired_state_has_to_be_read_again() -> None:
    scene = Scene(m=Objective(errors=0.01))
    scene.answer("m", Status.INTERNAL, times=50)
    scene.measured.judge(1.0)
    scene.forgotten.add("m")
    scene.measured.judge(3.0)
    [slo] = scene.measured.status()["slo"]
    assert slo["failed"] == 50, "what was counted is not lost by a change of any model"
    scene.measured.judge(3.0 + WINDOWS["6h"])
    assert scene.measured.status() == {}, "nobody has asked for the model in six hours"


def test_what_a_status_tells_is_read_and_shown() -> None:
    scene = Scene(m=Objective(20.0, 0.01))
    scene.answer("m", Status.INTERNAL, times=50)
    scene.measured.judge(1.0)
    doc = {"v": 1, "node": "n", "role": "gateway", "state": "ready"} | scene.measured.status()
    read, faults = read_status(json.dumps(doc).encode(), "n")
    assert read == doc
    assert faults == Faults()
    [line] = objective_lines([read])
    assert "objective of m (p99 20 ms, errors 0.01) BURNS (errors) at n" in line


@pytest.mark.parametrize(
    ("p99", "errors", "objective"),
    [
        ("20ms", "0.1%", Objective(20.0, 0.001)),
        ("1s", "", Objective(1000.0)),
        ("", "0.5", Objective(errors=0.5)),
        ("", "", None),
    ],
)
def test_flags_say_objectives(p99: str, errors: str, objective: Objective | None) -> None:
    assert objective_of(p99, errors) == objective


@pytest.mark.parametrize("text", ["", "x", "-1%", "0.1 percent"])
def test_a_share_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="share"):
        share(text)
