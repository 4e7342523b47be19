"""Objects keep their ids from frame to frame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from shards.cameras import Detections
from shards.cameras.tracking import Tracks, assigned, follow


def boxes_of(*corners: tuple[float, float], side: float = 0.2, kind: int = 0) -> Detections:
    boxes = np.array([[x, y, x + side, y + side] for x, y in corners], np.float32).reshape(-1, 4)
    n = len(boxes)
    return Detections(boxes, np.ones(n, np.float32), np.full(n, kind, np.int64))


def ids(found: Detections) -> list[int]:
    assert found.ids is not None
    assert found.ids.dtype == np.int64
    return [int(each) for each in found.ids]


steps = st.lists(st.tuples(st.floats(-0.05, 0.05), st.floats(-0.05, 0.05)), min_size=2, max_size=40)


@given(steps, st.floats(0.2, 0.5))
def test_a_box_that_moves_slowly_keeps_its_id(
    moves: list[tuple[float, float]], side: float
) -> None:
    tracks, at = Tracks(), (0.4, 0.4)
    seen = set()
    for frame, (across, down) in enumerate(moves):
        at = (at[0] + across, at[1] + down)
        tracks, found = follow(tracks, boxes_of(at, side=side), frame / 30)
        seen.add(tuple(ids(found)))
    assert seen == {(1,)}


frames = st.lists(
    st.lists(st.tuples(st.floats(0, 0.8), st.floats(0, 0.8), st.integers(0, 2)), max_size=8),
    max_size=25,
)


@given(frames, st.integers(1, 6), st.floats(0.01, 0.5))
def test_ids_are_given_once_and_what_is_remembered_is_bounded(
    scene: list[list[tuple[float, float, int]]], most: int, step: float
) -> None:
    tracks, now = Tracks(), 0.0
    last_seen: dict[int, tuple[float, int]] = {}
    newest = 0
    for rows in scene:
        now += step
        boxes = np.array([[x, y, x + 0.2, y + 0.2] for x, y, _ in rows], np.float32)
        classes = np.array([kind for *_, kind in rows], np.int64)
        found = Detections(boxes.reshape(-1, 4), np.ones(len(rows), np.float32), classes)
        tracks, found = follow(tracks, found, now, most=most)
        given_ids = ids(found)
        assert len(set(given_ids)) == len(given_ids)
        for each, kind in zip(given_ids, classes, strict=True):
            if each in last_seen:
                at, before = last_seen[each]
                assert now - at <= max(1.0, 6.5 * step) + 1e-9  # never again once it was given up
                assert before == kind
            else:
                assert each > newest
            newest = max(newest, each)
            last_seen[each] = (now, int(kind))
        assert len(tracks) <= most
        assert len(tracks.boxes) == len(tracks.classes) == len(tracks.seen) == len(tracks)


def played(frames: list[Detections], rate: float) -> list[list[int]]:
    """The ids of each frame."""
    tracks, given = Tracks(), []
    for number, found in enumerate(frames):
        tracks, found = follow(tracks, found, number / rate)
        given.append(ids(found))
    return given


@pytest.mark.parametrize(("rate", "hidden"), [(30, 5), (30, 28), (5, 5), (1, 5), (0.5, 5)])
def test_an_object_that_is_hidden_for_a_second_or_five_frames_comes_back(
    rate: float, hidden: int
) -> None:
    frames = [boxes_of((0.1, 0.1))] * 2 + [boxes_of()] * hidden + [boxes_of((0.12, 0.1))]
    assert played(frames, rate)[-1] == [1]


@pytest.mark.parametrize(("rate", "hidden"), [(30, 31), (5, 7), (1, 7)])
def test_an_object_that_was_away_for_longer_is_new(rate: float, hidden: int) -> None:
    frames = [boxes_of((0.1, 0.1))] * 2 + [boxes_of()] * hidden + [boxes_of((0.1, 0.1))]
    assert played(frames, rate)[-1] == [2]


@pytest.mark.parametrize("rate", [30.0, 10.0, 2.0])
@pytest.mark.parametrize("side", [0.06, 0.12])
@pytest.mark.parametrize("aside", [0.0, 0.02])
def test_two_that_cross_while_nobody_sees_them_keep_their_ids(
    rate: float, side: float, aside: float
) -> None:
    """Neither is seen for five frames, in which they change places."""
    frames = []
    for number in range(41):
        way = number * 0.02
        pair = boxes_of((0.05 + way, 0.4), (0.85 - way, 0.4 + aside), side=side)
        # They are at one place in frame 20.
        frames.append(boxes_of() if 18 <= number < 23 else pair)
    given = played(frames, rate)
    assert {tuple(each) for each in given if each} == {(1, 2)}


def test_an_object_that_moves_by_more_than_its_size_keeps_its_id() -> None:
    frames = [boxes_of((0.1 + 0.07 * number, 0.3), side=0.05) for number in range(12)]
    assert played(frames, 5.0) == [[1]] * 12


@given(
    st.integers(0, 6).flatmap(
        lambda rows: st.integers(0, 6).flatmap(
            lambda columns: st.lists(
                st.lists(
                    st.sampled_from([0.0, 1.1, 1.3, 1.5, 1.9]), min_size=columns, max_size=columns
                ),
                min_size=rows,
                max_size=rows,
            ).map(lambda table: np.array(table, float).reshape(rows, columns))
        )
    )
)
def test_pairs_have_the_largest_sum_that_any_have(worth: np.ndarray) -> None:
    rows, columns = assigned(worth)
    assert len(set(rows.tolist())) == len(set(columns.tolist())) == len(rows)
    assert (worth[rows, columns] > 0).all()
    best = linear_sum_assignment(worth, maximize=True)
    assert worth[rows, columns].sum() == pytest.approx(worth[best].sum())


def test_two_that_pass_each_other_keep_apart_and_another_class_is_another_object() -> None:
    tracks = Tracks()
    for frame in range(11):
        pair = boxes_of((0.1 + frame * 0.05, 0.1), (0.6 - frame * 0.05, 0.25), side=0.15)
        tracks, found = follow(tracks, pair, frame / 30)
        assert ids(found) == [1, 2]
    _, found = follow(tracks, boxes_of((0.6, 0.1), side=0.15, kind=1), 0.4)
    assert ids(found) == [3]


def test_the_nearer_box_goes_on_the_track_whatever_the_order() -> None:
    tracks, _ = follow(Tracks(), boxes_of((0.1, 0.1)), 0.0)
    _, found = follow(tracks, boxes_of((0.18, 0.1), (0.11, 0.1)), 0.1)
    assert ids(found) == [2, 1]
