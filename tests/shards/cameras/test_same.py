"""Two results that decide the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from test_boxes import random_boxes

from shards.cameras import Classes, Detections, Embedding, Segments
from shards.cameras.same import decides_the_same


@given(st.integers(0, 1000), st.integers(0, 12))
def test_the_same_objects_in_another_order_and_a_little_moved_are_the_same(
    seed: int, n: int
) -> None:
    boxes, scores = random_boxes(seed, n)
    one = Detections(boxes, scores, np.arange(n))
    order = np.random.default_rng(seed).permutation(n)
    other = Detections(boxes[order] + np.float32(0.001), scores[order] * 0.9, order)
    assert decides_the_same(one, other)
    assert decides_the_same(other, one)
    if n:
        assert not decides_the_same(one, Detections(boxes[1:], scores[1:], np.arange(n)[1:]))
        assert not decides_the_same(one, replace(one, boxes=boxes + np.float32(2)))
        assert not decides_the_same(one, replace(one, classes=one.classes + 1))


def test_two_boxes_are_not_both_found_by_one() -> None:
    boxes, scores = random_boxes(1, 2)
    boxes[1] = boxes[0] + np.float32(2)
    twice = np.stack([boxes[0], boxes[0]])
    one = Detections(boxes, scores, np.zeros(2, np.int64))
    assert not decides_the_same(one, replace(one, boxes=twice))
    assert not decides_the_same(replace(one, boxes=twice), one)


def test_a_box_without_an_area_is_found_where_it_is_and_nowhere_else() -> None:
    line = Detections(np.float32([[0, 1, 0.3, 1]]), np.ones(1, np.float32), np.zeros(1, np.int64))
    assert decides_the_same(line, line)
    assert not decides_the_same(line, replace(line, boxes=line.boxes - np.float32(0.2)))


def test_the_likeliest_class_decides_and_vectors_by_their_direction() -> None:
    def classes(*numbers: int) -> Classes:
        return Classes(np.array(numbers), np.linspace(1, 0, len(numbers), dtype=np.float32))

    assert decides_the_same(classes(3, 1), classes(3, 2))
    assert not decides_the_same(classes(3, 1), classes(1, 3))
    vector = np.float32([0.6, 0.8])
    assert decides_the_same(Embedding(vector), Embedding(vector * 3))
    assert not decides_the_same(Embedding(vector), Embedding(-vector))
    assert not decides_the_same(Embedding(vector), Embedding(np.ones(3, np.float32)))
    places = np.zeros((20, 20), np.uint8)
    moved = places.copy()
    moved[0, :4] = 1
    assert decides_the_same(Segments(places), Segments(moved))
    moved[0] = 1
    assert not decides_the_same(Segments(places), Segments(moved))
    assert not decides_the_same(Segments(places), classes(1))
