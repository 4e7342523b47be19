"""The gate computes what is new, and never lets one result stand for too much."""

from __future__ import annotations

import itertools
from math import inf

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.cameras.frame import Frame
from nodes.cameras.gate.gate import THRESHOLDS, Gate, GateRule, GateState, ResultValidity, decide
from nodes.cameras.gate.measures import MEASURES
from swarm.errors import InvalidArgument

SIZES = [(240, 320), (480, 640), (90, 70), (1080, 1920)]


def picture(seed: int = 1, size: tuple[int, int] = (240, 320)) -> np.ndarray:
    """Soft light and shadow, like a room's."""
    coarse = np.random.default_rng(seed).integers(40, 200, (12, 16, 3)).astype(np.uint8)
    return cv2.resize(coarse, (size[1], size[0]), interpolation=cv2.INTER_CUBIC)


def with_square(image: np.ndarray, side: float = 0.1) -> np.ndarray:
    """Something new in a corner, `side` of the picture's height."""
    changed = image.copy()
    size = int(side * image.shape[0])
    board = np.indices((size, size)).sum(0) // max(1, size // 4) % 2
    changed[4 : 4 + size, 4 : 4 + size] = (board * 255).astype(np.uint8)[:, :, None]
    return changed


def frame(image: np.ndarray, at: float) -> Frame:
    return Frame(image, at, round(at * 30))


figures = st.one_of(st.none(), st.floats(min_value=0, max_value=2), st.just(inf))
standings = st.builds(ResultValidity, st.sampled_from(["1", "2"]), st.booleans(), st.booleans())
steps = st.lists(st.tuples(figures, standings, st.floats(0, 5)), min_size=1, max_size=60)


@given(steps, st.integers(0, 12), st.floats(0.01, 10))
def test_no_result_stands_for_more_frames_or_longer_than_allowed(
    frames: list[tuple[float | None, ResultValidity, float]], most: int, oldest: float
) -> None:
    rule, state, now = GateRule(most_skipped=most, oldest=oldest), GateState(), 0.0
    since, computed_at, computed_under = 0, None, None
    for figure, standing, passes in frames:
        now += passes
        verdict, state = decide(rule, state, figure, standing, now)
        if verdict.computes:
            since, computed_at, computed_under = 0, now, standing
            continue
        since += 1
        assert computed_at is not None
        assert since == verdict.skipped <= most
        assert now - computed_at <= oldest
        assert standing == computed_under
        assert figure is not None
        assert figure <= verdict.threshold <= THRESHOLDS["ssim-min"][1]


@given(st.lists(st.floats(0, 2), min_size=1, max_size=400))
def test_noise_raises_the_threshold_to_its_most_and_never_lowers_it(changes: list[float]) -> None:
    state = GateState()
    for at, figure in enumerate(changes):
        verdict, state = decide(GateRule(), state, figure, ResultValidity(), at / 30)
        assert 0.3 <= verdict.threshold <= 0.7


def test_a_noisy_camera_that_shows_nothing_new_is_skipped_after_a_while() -> None:
    """Its noise alone changes by 0.18: three times that is its threshold."""
    state, late = GateState(), []
    for at in range(120):
        figure = 0.18 if at % 7 else 0.35
        verdict, state = decide(GateRule(), state, figure, ResultValidity(), at / 30)
        late.append(verdict.why)
    assert late[7] == "changed"
    assert set(late[40:]) <= {"same", "most-skipped"}


@pytest.mark.parametrize("name", THRESHOLDS)
@pytest.mark.parametrize("size", SIZES)
def test_what_is_the_same_is_skipped_and_what_is_new_is_computed(
    name: str, size: tuple[int, int]
) -> None:
    rule = GateRule.of(name)
    assert rule is not None
    gate, room = Gate(rule), picture(size=size)
    noise = np.random.default_rng(3).integers(-2, 3, room.shape)
    noisy = np.clip(room + noise, 0, 255).astype(np.uint8)
    assert gate.look(frame(room, 0.0), ResultValidity()).why == "first"
    assert gate.look(frame(noisy, 0.1), ResultValidity()).why == "same"
    assert gate.look(frame(with_square(room, 0.3), 0.2), ResultValidity()).why == "changed"


def test_a_small_thing_in_a_corner_is_new_to_the_default() -> None:
    """A tenth of the height: the mean of all pixels hardly moves."""
    gate, room = Gate(GateRule()), picture()
    gate.look(frame(room, 0.0), ResultValidity())
    assert gate.look(frame(with_square(room), 0.1), ResultValidity()).computes


def test_a_slow_drift_is_seen_though_no_frame_differs_from_the_one_before() -> None:
    gate, measure = Gate(GateRule(most_skipped=1000, oldest=1000.0)), MEASURES["ssim-min"]
    rooms = [picture(size=(240, 380))[:, by : by + 320] for by in range(40)]
    reduced = [measure.reduced(room) for room in rooms]
    steps = [measure.change(*pair) for pair in itertools.pairwise(reduced)]
    assert max(steps) < gate.rule.threshold
    whys = [gate.look(frame(room, at / 30), ResultValidity()).why for at, room in enumerate(rooms)]
    assert whys.count("changed") >= 1


@pytest.mark.parametrize(
    "changed",
    [
        ResultValidity("2"),
        ResultValidity("1", is_degraded=True),
        ResultValidity("1", is_alarmed=True),
    ],
)
def test_the_next_frame_is_computed_when_what_its_result_holds_for_changes(
    changed: ResultValidity,
) -> None:
    gate, room = Gate(GateRule()), picture()
    gate.look(frame(room, 0.0), ResultValidity("1"))
    assert not gate.look(frame(room, 0.1), ResultValidity("1")).computes
    assert gate.look(frame(room, 0.2), changed).why == "standing"
    assert not gate.look(frame(room, 0.3), changed).computes


def test_a_frame_without_a_result_stands_for_nothing() -> None:
    gate, room = Gate(GateRule()), picture()
    gate.look(frame(room, 0.0), ResultValidity())
    gate.failed()
    assert gate.look(frame(room, 0.1), ResultValidity()).computes


def test_a_camera_that_changes_its_size_is_computed() -> None:
    gate = Gate(GateRule())
    gate.look(frame(picture(), 0.0), ResultValidity())
    assert gate.look(frame(picture(size=(480, 640)), 0.1), ResultValidity()).computes


def test_settings_read_as_people_write_them() -> None:
    assert GateRule.of("ssim-min:0.5", 4, 2.0) == GateRule("ssim-min", 0.5, 4, 2.0)
    assert GateRule.of("block") == GateRule("block", 20.0)
    assert GateRule.of("off") is None
    for wrong in ("ssim", "ssim-min:", "ssim-min:x", "block:-1", "block:nan", ":3"):
        with pytest.raises(InvalidArgument, match="--gate"):
            GateRule.of(wrong)
