"""Boxes of several cameras are of one object: by a plane that all of them see, or by class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.cameras.join.objects import Plane, joined, plane_of
from nodes.cameras.join.pairing import View
from swarm.errors import InvalidArgument

EDGES = ("left", "right")
FLOOR = np.array([[0, 0], [4, 0], [4, 6], [0, 6], [2, 3]], float)
# Two cameras that look at the floor from opposite ends.
CAMERAS = {
    "left": np.array([[0.15, 0.0, 0.2], [0.0, -0.02, 0.9], [0.0, 0.09, 1.0]]),
    "right": np.array([[-0.15, 0.0, 0.8], [0.01, 0.05, 0.4], [0.0, -0.06, 1.1]]),
}


def seen_by(edge: str, place: np.ndarray) -> tuple[float, float]:
    x, y, scale = CAMERAS[edge] @ (*place, 1)
    return float(x / scale), float(y / scale)


def floor_file(folder: Path, points: np.ndarray = FLOOR) -> str:
    told: dict[str, Any] = {"within": 0.5}
    for edge in EDGES:
        told[edge] = [[*seen_by(edge, place), *place.tolist()] for place in points]
    path = folder / "floor.json"
    path.write_text(json.dumps(told))
    return str(path)


def view(edge: str, *objects: tuple[np.ndarray, int]) -> View:
    """What an edge says of objects at these places, of these classes."""
    rows = []
    for number, (place, kind) in enumerate(objects):
        x, y = seen_by(edge, np.array(place))
        box = [x - 0.02, y - 0.1, x + 0.02, y]
        rows.append(
            {
                "label": f"k{kind}",
                "class": kind,
                "score": 0.5 + number / 10,
                "box": box,
                "id": number,
            }
        )
    return View(edge, 0.0, 0.0, {"detections": rows})


places = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(0, 1)), unique=True, max_size=8
)


@given(places, st.randoms())
def test_objects_apart_from_each_other_are_matched_whatever_the_order(
    tmp_path_factory: pytest.TempPathFactory, where: list[tuple[int, int, int]], random: Any
) -> None:
    plane = Plane.of(floor_file(tmp_path_factory.mktemp("floor")), EDGES)
    objects = [(np.array([x + 0.5, y + 0.5]), kind) for x, y, kind in where]
    others = objects[:]
    random.shuffle(others)
    moment = {"left": view("left", *objects), "right": view("right", *others)}
    found = joined(EDGES, moment, plane)
    assert len(found) == len(objects)
    for each, (place, kind) in zip(found, objects, strict=True):
        assert each["class"] == kind
        assert set(each["from"]) == set(EDGES)
        np.testing.assert_allclose(each["place"], place, atol=1e-4)
        there = others[each["from"]["right"]["id"]]
        assert there[1] == kind
        np.testing.assert_array_equal(there[0], place)


def test_what_one_camera_sees_alone_says_so(tmp_path: Path) -> None:
    plane = plane_of(floor_file(tmp_path), EDGES)
    near, far, other = np.array([1.0, 1.0]), np.array([3.0, 5.0]), np.array([1.2, 1.1])
    moment = {"left": view("left", (near, 0), (far, 0)), "right": view("right", (other, 0))}
    both, alone = joined(EDGES, moment, plane)
    assert set(both["from"]) == {"left", "right"}
    assert set(alone["from"]) == {"left"}
    (single,) = joined(EDGES, {"right": view("right", (other, 0))}, plane)
    assert set(single["from"]) == {"right"}


def test_another_class_or_a_place_too_far_is_another_object(tmp_path: Path) -> None:
    plane = plane_of(floor_file(tmp_path), EDGES)
    here, there = np.array([1.0, 1.0]), np.array([1.0, 1.6])
    for one, other in (((here, 0), (here, 1)), ((here, 0), (there, 0))):
        moment = {"left": view("left", one), "right": view("right", other)}
        assert len(joined(EDGES, moment, plane)) == 2


def test_by_class_alone_all_boxes_are_told_and_counted() -> None:
    here = np.array([1.0, 1.0])
    moment = {
        "left": view("left", (here, 0), (here, 0), (here, 1)),
        "right": view("right", (here, 0)),
    }
    zero, one = joined(EDGES, moment, plane_of("class", EDGES))
    assert (zero["class"], zero["count"]) == (0, 2)
    assert {edge: len(rows) for edge, rows in zero["from"].items()} == {"left": 2, "right": 1}
    assert zero["score"] == 0.6
    assert (one["class"], one["count"], set(one["from"])) == (1, 1, {"left"})


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"detections": 3},
        {"detections": [{}]},
        {"detections": [{"label": "a", "class": 0, "score": 1.0, "box": [0, 0, 1]}]},
        {"detections": [{"label": "a", "class": 0, "score": float("nan"), "box": [0, 0, 1, 1]}]},
        {"detections": [{"label": "a", "class": [], "score": 1.0, "box": [0, 0, 1, 1]}]},
        {"detections": [{"label": "a", "class": 0, "score": 1.0, "box": [0, 0, 1, 10**400]}]},
    ],
)
def test_a_result_without_boxes_is_refused(line: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="left: a result without boxes"):
        joined(EDGES, {"left": View("left", 0.0, 0.0, line)}, None)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("no json", "it is `class`, or a JSON file"),
        ("[]", "it is `class`, or a JSON file"),
        ('{"within": 1}', "'left' is missing"),
        ('{"within": 0, "left": [], "right": []}', "four rows"),
        ('{"within": 1, "left": [[0, 0, 0, 0]], "right": []}', "four rows"),
    ],
)
def test_a_file_that_tells_no_plane_is_refused(tmp_path: Path, told: str, said: str) -> None:
    (tmp_path / "floor.json").write_text(told)
    with pytest.raises(InvalidArgument, match=said):
        plane_of(str(tmp_path / "floor.json"), EDGES)
    with pytest.raises(InvalidArgument, match="nowhere"):
        plane_of(str(tmp_path / "nowhere.json"), EDGES)


@pytest.mark.parametrize(
    "points", [FLOOR[[0, 0, 1, 2]], np.array([[0, 0], [1, 1], [2, 2], [3, 3]], float)]
)
def test_points_that_tell_no_plane_are_refused(tmp_path: Path, points: np.ndarray) -> None:
    with pytest.raises(InvalidArgument, match=r"on a line|no plane"):
        plane_of(floor_file(tmp_path, points), EDGES)
