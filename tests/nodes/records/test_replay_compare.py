"""How far answers are apart, and which requests a share draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.records.commands.replay import reasons
from nodes.records.recorded import Recorded
from nodes.records.recording import is_drawn, tap_config
from nodes.records.session import (
    RepeatedStage,
    Replay,
    compare,
    decides_otherwise,
    replay_each,
    why_incomplete,
)
from shards.errors import InputError, RunError, ShardsError
from swarm.errors import InvalidArgument, NotFound, SwarmError, Unavailable
from swarm.ids import ulid
from swarm.records.subjects import RecordSubjects
from swarm.subjects import Subjects, covers

X = np.array([[1.0, 2.0, 3.0]], np.float32)


@pytest.mark.parametrize(
    ("made", "seen", "equal", "deviation"),
    [
        ({"a": X}, {"a": X.copy()}, True, 0.0),
        ({"a": X}, {"a": X + np.float32(0.5)}, False, 0.5),
        ({"a": X}, {"b": X}, False, math.inf),
        ({"a": X}, {"a": X.astype(np.float64)}, False, math.inf),
        ({"a": X}, {"a": X[:, :2]}, False, math.inf),
        ({"a": X * np.nan}, {"a": X * np.nan}, True, 0.0),
        ({"a": X * np.nan}, {"a": X}, False, math.inf),
        ({"a": X * 0}, {"a": X * -0.0}, False, 0.0),
    ],
)
def test_tensors_are_equal_bit_by_bit_or_so_far_apart(
    made: dict[str, np.ndarray], seen: dict[str, np.ndarray], equal: bool, deviation: float
) -> None:
    found = compare(made, seen)
    assert (found.equal, found.deviation) == (equal, deviation)


def test_another_class_is_another_decision() -> None:
    assert not decides_otherwise({"a": X}, {"a": X * 2})
    assert decides_otherwise({"a": X}, {"a": -X})
    assert not decides_otherwise({"a": X}, {"b": -X})


def test_a_replay_in_which_nothing_could_be_compared_is_not_equal() -> None:
    steps = (RepeatedStage(1, "n", None, 0.0),)
    assert not Replay("r", 0.0, "1", 0, steps).equal(0.0)
    steps = (RepeatedStage(1, "n", compare({"a": X}, {"a": X + 1}), 0.0),)
    assert not Replay("r", 0.0, "1", 0, steps).equal(0.0)
    assert Replay("r", 0.0, "1", 0, steps).equal(1.0)


@given(st.text(min_size=1, max_size=40))
def test_a_request_is_drawn_or_not_by_its_id_alone(request_id: str) -> None:
    assert is_drawn(request_id, 1.0)
    assert is_drawn(request_id, 0.3) == is_drawn(request_id, 0.3)
    assert not is_drawn(request_id, 0.2) or is_drawn(request_id, 0.4)


def test_a_share_draws_about_as_many() -> None:
    drawn = sum(is_drawn(ulid(), 0.1) for _ in range(5000))
    assert 350 < drawn < 650


def test_copies_have_a_subject_that_no_lane_has() -> None:
    subjects = Subjects("m")
    config = tap_config(subjects, "digits", "1")
    assert config["src"] == subjects.features_of("digits", "1")
    lanes = subjects.features_of("digits", "1")
    assert not covers(lanes, RecordSubjects.of(subjects).tap("digits", "1", 2, "any"))


BAD: list[SwarmError | ShardsError] = [
    InvalidArgument("this is no picture"),
    InputError("x", "FP32[1,4]", "FP32[1,5]"),
    RunError("Gather: index out of range"),
    NotFound("its question was not recorded"),
]


def recorded(number: int) -> Recorded:
    return Recorded(f"r{number}", "m", "1", float(number), {})


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("error", BAD, ids=lambda error: type(error).__name__)
async def test_a_request_that_cannot_be_run_again_ends_no_other_ones_replay(
    error: Exception, place: int
) -> None:
    async def one(each: Recorded) -> Replay:
        if each.id == f"r{place}":
            raise error
        return Replay(each.id, each.at, "2", 0, ())

    replays = await replay_each([recorded(number) for number in range(8)], one, "2")
    assert [each.id for each in replays] == [f"r{number}" for number in range(8)]
    assert [each.note for each in replays] == [
        str(error) if number == place else "" for number in range(8)
    ]
    assert {each.version for each in replays} == {"2"}


@pytest.mark.parametrize("error", [Unavailable("no server"), NotFound("not recorded")])
async def test_what_ends_the_command_is_raised(error: Exception) -> None:
    async def one(each: Recorded) -> Replay:
        raise error

    with pytest.raises(type(error)):
        await replay_each([recorded(1)], one)


def request(*stages: int, output: str = "") -> Recorded:
    kept: dict[int, Any] = dict.fromkeys(stages)
    return Recorded("r", "m", "1", 0.0, kept, {"output": output} if output else {})


def test_stages_that_were_not_recorded_and_answers_that_nobody_kept_are_named() -> None:
    assert why_incomplete(request(1, 2, 3, output="abc"), 3) == ""
    assert why_incomplete(request(1, 3, output="abc"), 3) == "stages not recorded: 2"
    assert "only an audit keeps answers" in why_incomplete(request(1, 2, 3), 3)
    assert why_incomplete(request(1, 2), 3) == "stages not recorded: 3"


def test_the_reasons_of_many_replays_are_told_once_each_with_their_count() -> None:
    lacking = Replay("a", 0.0, "1", 0, (), note="stages not recorded: 2")
    told = reasons([lacking, lacking, Replay("b", 0.0, "1", 0, ())])
    assert told[0] == "stages not recorded: 2 (of 2 of 3 requests)"
    assert told[1].startswith("3 of 3 could not be compared at all")
