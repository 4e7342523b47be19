"""A second model is asked about objects that look new; the others keep their answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.camera_mesh import HEIGHT, WIDTH, Sink, red_detector, watched_model
from support.meshes import add_model, mesh_of
from support.waiting import eventually

from nodes.cameras.crops.cache import SIZE, CropCache, CropRule, KnownObject
from nodes.cameras.crops.crops import cut
from shards.cameras.wish import Wish
from shards.split.split import split


def crop(seed: int, noise: float = 0.0) -> np.ndarray:
    """Blurred blobs, gray, with the noise of a sensor."""
    random = np.random.default_rng(seed)
    blobs = cv2.GaussianBlur(random.uniform(0, 255, SIZE), (9, 9), 3).astype(np.float32)
    spread = cv2.normalize(blobs, None, 20, 235, cv2.NORM_MINMAX)
    return np.clip(spread + random.normal(0, noise, SIZE), 0, 255).astype(np.uint8)


BOX = np.array([0.2, 0.2, 0.4, 0.4])


def test_an_object_keeps_its_answer_while_it_looks_the_same_is_young_and_its_version_serves() -> (
    None
):
    cache = CropCache(CropRule(oldest=10.0))
    cache.keep(1, KnownObject(BOX, crop(1), "1", {"label": "cat"}, at=0.0))
    assert cache.answer(1, BOX, lambda box: crop(1, noise=2.0), "1", 5.0) is not None
    assert cache.answer(1, BOX, lambda box: crop(2), "1", 5.0) is None
    assert cache.answer(1, BOX, lambda box: None, "1", 5.0) is None
    assert cache.answer(1, BOX, lambda box: crop(1), "1", 10.1) is None
    assert cache.answer(1, BOX, lambda box: crop(1), "2", 5.0) is None
    assert cache.answer(2, BOX, lambda box: crop(1), "1", 5.0) is None


def test_an_object_that_stands_still_keeps_its_answer_though_its_box_trembles() -> None:
    cache = CropCache(CropRule())
    cache.keep(1, KnownObject(BOX, crop(1), "1", {}, at=0.0))

    def only_there(box: np.ndarray) -> np.ndarray:
        return crop(1 if np.array_equal(box, BOX) else 2)

    assert cache.answer(1, BOX + 0.01, only_there, "1", 1.0) is not None
    assert cache.answer(1, BOX + 0.15, only_there, "1", 1.0) is None


@given(st.lists(st.integers(0, 30), max_size=60))
def test_no_more_objects_are_remembered_than_allowed_and_the_last_one_always(
    tracks: list[int],
) -> None:
    cache, same = CropCache(CropRule(most=8)), crop(1)
    for now, track in enumerate(tracks):
        cache.keep(track, KnownObject(BOX, same, "1", {}, float(now)))
        assert len(cache) <= 8
        assert cache.answer(track, BOX, lambda box: same, "1", float(now)) is not None


def test_a_box_that_leaves_the_picture_is_cut_at_its_edge_and_a_tiny_one_is_left_out() -> None:
    image = np.arange(48 * 64 * 3, dtype=np.uint8).reshape(48, 64, 3)
    whole = cut(image, np.array([-0.5, -0.5, 1.5, 1.5]))
    assert whole is not None
    assert np.array_equal(whole, image)
    assert cut(image, np.array([0.5, 0.5, 0.51, 0.9])) is None
    assert cut(image, np.array([0.9, 0.9, 0.1, 0.1])) is None
    for place in range(4):  # a box of no place is none of its frame's other boxes' business
        for wrong in (np.nan, np.inf, -np.inf):
            box = np.array([0.1, 0.1, 0.9, 0.9])
            box[place] = wrong
            assert cut(image, box) is None


def test_a_turned_box_is_cut_upright_and_one_that_runs_upwards_is_laid_on_its_side() -> None:
    image = np.zeros((100, 200, 3), np.uint8)
    image[40:60, 50:150] = 200
    image[40:60, 50:60] = 90  # where it begins
    centre, size = (100, 50), (200, 100)
    for degrees in (0, 20, 75):
        turn = cv2.getRotationMatrix2D(centre, -degrees, 1)
        turned = cv2.warpAffine(image, turn, size)
        corners = np.float32([[50, 40], [150, 40], [150, 60], [50, 60]])
        corners = corners @ turn[:, :2].T + turn[:, 2]
        crop = cut(turned, np.float32([0, 0, 1, 1]), corners / np.float32(size))
        assert crop is not None
        assert crop.shape == (20, 100, 3)
        assert abs(int(crop[10, 5, 0]) - 90) < 20
        assert crop[10, 20:90].min() > 180
    upwards = np.float32([[0.4, 0.2], [0.45, 0.2], [0.45, 0.9], [0.4, 0.9]])
    crop = cut(image, np.float32([0, 0, 1, 1]), upwards)
    assert crop is not None
    assert crop.shape[:2] == (10, 70)
    none = np.float32([0, 0, 1, 1])
    assert cut(image, none, upwards * np.float32(np.nan)) is None
    assert cut(image, none, upwards * np.float32([0.1, 1])) is None
    assert cut(image, none, upwards * np.float32(1e9)) is None


@pytest.mark.integration
@pytest.mark.processes
@pytest.mark.benchmark  # a whole story, longer than ten seconds
async def test_objects_of_a_still_picture_are_asked_about_once_and_a_new_one_is(
    tmp_path: Path,
) -> None:
    for number in range(12):
        image = np.full((HEIGHT, WIDTH, 3), 90, np.uint8)
        left = 8 if number < 8 else 40
        image[16:24, left : left + 8] = (250, 10, 20)
        cv2.imwrite(str(tmp_path / f"{number:04}.png"), image[..., ::-1])
    wish = Wish("detect", threshold=0.3, bake=False)
    found = await asyncio.to_thread(split, red_detector(), name="red", stages=1, addition=wish)
    about = await asyncio.to_thread(split, watched_model(), name="watched", stages=1)
    async with mesh_of() as local:
        await add_model(local, found, "shard-1")
        await add_model(local, about, "shard-1")
        sink = Sink(local, "seen")
        flags = ["--source", str(tmp_path), "--sink", "seen", "--on-full", "block"]
        edge = local.start("edge", "red", *flags, "--in-flight", "1", "--crops", "watched")
        edge.wanted = False
        await eventually(lambda: not edge.alive and len(sink.lines) == 12)
    assert {line["status"] for line in sink.lines} == {"OK"}
    assert all(len(line["crops"]) == len(line["detections"]) == 1 for line in sink.lines)
    crops = [line["crops"][0] for line in sink.lines]
    assert [number for number, each in enumerate(crops) if "age_ms" not in each] == [0, 8]
    assert crops[1]["outputs"] == crops[0]["outputs"]
    assert np.shape(crops[0]["outputs"]["numbers"]) == (1, 8)
    assert "crops" in sink.lines[0]["spent_ms"]
