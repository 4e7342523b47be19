"""Objects keep their ids from frame to frame."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shards.task import Detections
from shards.task.tracking import Tracks, follow


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
                assert now - at <= 1.0 + 1e-9  # never again once it was given up
                assert before == kind
            else:
                assert each > newest
            newest = max(newest, each)
            last_seen[each] = (now, int(kind))
        assert len(tracks) <= most
        assert len(tracks.boxes) == len(tracks.classes) == len(tracks.seen) == len(tracks)


def test_an_object_that_is_hidden_for_a_moment_comes_back_and_after_long_it_is_new() -> None:
    tracks, found = follow(Tracks(), boxes_of((0.1, 0.1)), 0.0)
    assert ids(found) == [1]
    tracks, _ = follow(tracks, boxes_of(), 0.3)
    tracks, found = follow(tracks, boxes_of((0.12, 0.1)), 0.6)
    assert ids(found) == [1]
    tracks, _ = follow(tracks, boxes_of(), 1.0)
    _, found = follow(tracks, boxes_of((0.12, 0.1)), 1.7)
    assert ids(found) == [2]


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
