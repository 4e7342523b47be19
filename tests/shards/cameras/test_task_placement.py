"""A picture on a model's grid, and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.cameras.pixels import on_grid, resized, resized_by_numpy, to_gray
from shards.cameras.placement import place

sides = st.integers(8, 3000)
grids = st.integers(8, 700)
corners = st.lists(st.floats(0, 1), min_size=4, max_size=4)


@given(sides, sides, grids, grids, st.sampled_from(["stretch", "letterbox"]), corners)
def test_a_box_comes_back_to_where_it_was(
    height: int, width: int, grid_width: int, grid_height: int, fit: str, at: list[float]
) -> None:
    box = np.array([at])
    placed = place((height, width, 3), grid_width, grid_height, fit)
    # FP32 on the way; a picture of one pixel's height on the grid magnifies its rounding.
    worst = 1e-6 * max(grid_width / placed.width, grid_height / placed.height)
    np.testing.assert_allclose(placed.back(placed.forward(box)), box, atol=worst)


@given(sides, sides, grids, grids, st.lists(st.floats(-2, 3), min_size=4, max_size=4))
def test_no_box_reaches_out_of_the_picture(
    height: int, width: int, grid_width: int, grid_height: int, at: list[float]
) -> None:
    for fit in ("stretch", "letterbox"):
        back = place((height, width), grid_width, grid_height, fit).back(np.float32([at]))
        assert back.dtype == np.float32
        assert (back >= 0).all()
        assert (back <= 1).all()


@given(sides, sides, grids, grids)
def test_a_letterbox_lies_within_its_grid_and_keeps_proportions_to_a_pixel(
    height: int, width: int, grid_width: int, grid_height: int
) -> None:
    at = place((height, width), grid_width, grid_height, "letterbox")
    assert at.left >= 0
    assert at.top >= 0
    assert at.left + at.width <= grid_width
    assert at.top + at.height <= grid_height
    assert at.width == grid_width or at.height == grid_height
    scale = min(grid_width / width, grid_height / height)
    assert abs(at.width - width * scale) <= 1
    assert abs(at.height - height * scale) <= 1


def test_a_wide_picture_stands_in_the_middle_between_two_stripes_of_the_fill() -> None:
    image = np.full((100, 200, 3), 7, np.uint8)
    grid = on_grid(image, 64, 64, "letterbox", 114)
    assert grid.shape == (64, 64, 3)
    assert (grid[16:48] == 7).all()
    assert (grid[:16] == 114).all()
    assert (grid[48:] == 114).all()


@pytest.mark.parametrize("size", [(64, 48), (320, 240), (33, 200)])
def test_without_opencv_a_resized_picture_differs_by_one_at_most(size: tuple[int, int]) -> None:
    pytest.importorskip("cv2", reason="opencv-python-headless is not installed")
    data = pytest.importorskip("skimage.data")
    image = data.astronaut()
    one, other = resized(image, *size), resized_by_numpy(image, *size)
    assert one.shape == other.shape == (size[1], size[0], 3)
    assert np.abs(one.astype(int) - other).max() <= 1


def test_gray_is_the_luma_that_opencv_computes() -> None:
    cv2 = pytest.importorskip("cv2", reason="opencv-python-headless is not installed")
    image = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    expected = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    assert np.abs(to_gray(image)[:, :, 0].astype(int) - expected).max() <= 1
