"""How far answers are apart, and which requests a share draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.records.recording import is_drawn, tap_config
from nodes.records.session import RepeatedStage, Replay, compare, decides_otherwise
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
