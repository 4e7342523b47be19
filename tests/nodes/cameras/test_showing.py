"""Drawn frames say what was found and how old that is; nobody's watching costs nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from support.waiting import GENEROUS, eventually

from nodes.cameras.anatomy import Anatomy, explained
from nodes.cameras.board import Board
from nodes.cameras.drawing import caption_of, drawn
from nodes.cameras.shows import Film, Shows, path_of
from nodes.cameras.turns import Turns
from nodes.cameras.view import own_place
from nodes.place import ListenPlace
from shards.cameras.results import Classes, DepthGrid, Detections, Embedding, Masks, Segments, Text
from swarm.errors import InvalidArgument
from swarm.wire.hops import Hop

GRAY = np.full((240, 320, 3), 90, np.uint8)


def face(box: tuple[float, ...], labels: tuple[str, ...] = ("face",)) -> Detections:
    boxes = np.array([box], np.float32)
    return Detections(boxes, np.ones(1, np.float32), np.zeros(1, np.int64), labels, np.array([7]))


# --- drawing ------------------------------------------------------------------------------


def test_a_box_is_drawn_where_it_is_and_the_frame_stays_as_it_was() -> None:
    picture = drawn(GRAY, face((0.25, 0.5, 0.75, 0.75)), "")
    changed = (picture != GRAY).any(axis=2)
    assert changed[120, 80:240].all()
    assert not changed[150, 100:220].any()
    assert (GRAY == 90).all()


@pytest.mark.parametrize(
    "found",
    [
        face((-5.0, float("nan"), 9.0, float("inf")), ("naïve \x1b[31m",)),
        face((0.9, 0.0, 1.0, 0.0), ()),
        Classes(np.arange(20), np.linspace(1, 0, 20, dtype=np.float32)),
        Segments(np.array([[0, 1], [255, 3]], np.uint8)),
        Segments(np.zeros((4, 4), np.int64)),
        Embedding(np.zeros(8, np.float32)),
        DepthGrid(np.arange(12, dtype=np.float32).reshape(3, 4)),
        DepthGrid(np.full((1, 1), np.nan, np.float32)),
        Text("Straße 7", 0.9),
        replace(face((0, 0, 1, 1)), corners=np.float32([[[-9, np.nan], [1, 0], [1, 1], [0, 1]]])),
        replace(face((0, 0, 1, 1)), points=np.float32([[[0.5, 0.5, 1], [np.inf, -9, 1]]])),
        replace(face((0, 0, 1, 1)), masks=Masks((2, 3), (np.array([2, 3, 1]),))),
        None,
    ],
)
@pytest.mark.parametrize("shape", [(1, 1, 3), (7, 640, 3), (240, 320, 3)])
def test_any_result_is_drawn_into_any_picture(found: object, shape: tuple[int, ...]) -> None:
    image = np.full(shape, 90, np.uint8)
    assert drawn(image, found, "gate  12 ms").shape == shape


def test_segments_cover_the_places_of_their_classes() -> None:
    picture = drawn(GRAY, Segments(np.array([[0, 1]])), "")
    assert (picture[20, 20] == 90).all()
    assert (picture[20, 300] != 90).any()


def test_masks_keypoints_and_turned_boxes_are_drawn_where_they_are() -> None:
    left = Masks((2, 2), (np.array([0, 2, 2]),))  # the left half
    picture = drawn(GRAY, replace(face((0, 0, 0.9, 0.9)), masks=left), "")
    assert (picture[100, 80] != 90).any()
    assert (picture[100, 200] == 90).all()
    points = np.float32([[[0.5, 0.5, 0.9], [0.25, 0.5, 0.1]]])  # the second one is not seen
    picture = drawn(GRAY, replace(face((0, 0, 0.9, 0.9)), points=points), "")
    assert (picture[120, 160] != 90).any()
    assert (picture[120, 80] == 90).all()
    turned = np.float32([[[0.5, 0.25], [0.75, 0.5], [0.5, 0.75], [0.25, 0.5]]])
    picture = drawn(GRAY, replace(face((0.25, 0.25, 0.75, 0.75)), corners=turned), "")
    assert (picture[90, 200] != 90).any()  # on an edge of the turned box
    assert (picture[120, 160] == 90).all()


def test_depths_are_colours_in_place_of_the_picture() -> None:
    picture = drawn(GRAY, DepthGrid(np.float32([[1, 9]])), "")
    assert picture[20, 20].sum() < picture[20, 300].sum()


# --- anatomy ------------------------------------------------------------------------------


def test_the_parts_of_a_frame_add_up_to_the_whole_whatever_other_nodes_say() -> None:
    hops = [Hop(0, "edge", 0, 900), Hop(1, "a", 100, 2000), Hop(2, "liar", -5, 10**9)]
    anatomy = Anatomy(10.0, 0.002, 10.003, 10.004, 10.014, 10.015, 10.016, hops)
    parts = anatomy.parts()
    assert sum(parts.values()) == pytest.approx(anatomy.whole_ms) == pytest.approx(16.0)
    assert min(parts.values()) >= 0
    assert parts["stage 1"] == pytest.approx(2.1)
    text = explained("gate", 3, anatomy)
    assert text.startswith("frame 3 of gate: 16.0 ms")
    assert "sum             16.00 ms" in text
    assert caption_of("gate", 15.0, parts).startswith("gate  15 ms  =  decode 2.0")


# --- turns --------------------------------------------------------------------------------


def test_the_source_that_waited_longest_is_next() -> None:
    turns = Turns(most=1)
    order = []
    for moment in range(6):
        name = turns.next(["a", "b", "c"], 0.0, 0.0)
        assert name is not None
        turns.began(name, moment)
        assert turns.next(["a", "b", "c"], 0.0, 0.0) is None
        turns.ended()
        order.append(name)
    assert order == ["a", "b", "c"] * 2
    assert turns.next([], 0.0, 0.0) is None


def test_as_many_frames_are_on_their_way_as_keep_the_slowest_stage_busy() -> None:
    turns = Turns(most=8)
    assert turns.allowed(0.0, 0.0) == 1  # nothing is known yet
    for _ in range(50):
        # Three stages of 20 ms, and a queue that a fourth frame would only lengthen.
        turns.answered(
            0.165, [Hop(stage, "n", 35_000 if stage == 1 else 0, 20_000) for stage in (1, 2, 3)]
        )
    assert 4 <= turns.allowed(0.0, 0.0) <= 7
    for _ in range(50):
        turns.answered(0.060, [Hop(1, "n", 0, 60_000)])
    assert turns.allowed(0.0, 0.0) == 1
    for _ in range(50):
        turns.answered(0.003, [Hop(1, "n", -(10**12), -5), Hop(2, "n", 10**12, 10**12)])
    assert 1 <= turns.allowed(0.0, 0.0) <= 8


def test_a_slow_link_gets_what_it_carries() -> None:
    turns = Turns(most=8)
    for _ in range(50):
        turns.answered(0.004, [Hop(1, "n", 0, 1_000)])
    assert turns.allowed(0.5, 0.02) == 1


# --- a file, a board, a window ------------------------------------------------------------


def test_a_film_keeps_the_pace_of_its_frames_and_the_size_of_its_first(tmp_path: Path) -> None:
    path = tmp_path / "out.mp4"
    film = Film(path)
    for number in range(10):
        film.add(GRAY[:, : 320 - number] if number < 5 else GRAY[:100], 50.0 + number * 0.1)
    film.close()
    with av.open(str(path)) as video:
        frames = list(video.decode(video=0))
    assert len(frames) == 10
    assert {(frame.width, frame.height) for frame in frames} == {(320, 240)}
    assert frames[-1].time - frames[0].time == pytest.approx(0.9, abs=0.01)
    assert path_of("a/out.mp4", "gate", True) == Path("a/out.mp4")
    assert path_of("a/out.mp4", "gate", False) == Path("a/out-gate.mp4")


def test_a_film_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent" / "out.mp4", tmp_path / "out.nothing"):
        with pytest.raises(InvalidArgument, match="--save"):
            Film(path)


async def test_a_slow_watcher_gets_the_newest_picture() -> None:
    board = Board()
    found: list[bytes] = []

    async def watch() -> None:
        async for data in board.watch("gate"):
            found.append(data)
            await asyncio.sleep(0.05)  # a slow browser

    watching = asyncio.create_task(watch())
    await eventually(lambda: board.is_watched("gate"))
    for number in range(20):
        board.put("gate", b"%d" % number)
        await asyncio.sleep(0.005)
    await eventually(lambda: found and found[-1] == b"19")
    assert len(found) < 20
    board.close()
    await asyncio.wait_for(watching, GENEROUS)
    assert not board.is_watched("gate")
    assert board.watchers == 0


async def test_a_window_without_a_display_is_refused_with_another_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    with pytest.raises(InvalidArgument, match="--view"):
        Shows(None, "", True, ["gate"])
    monkeypatch.setenv("DISPLAY", ":99")
    if "GUI:                           NONE" in cv2.getBuildInformation():
        with pytest.raises(InvalidArgument, match="no windows"):
            Shows(None, "", True, ["gate"])


@pytest.mark.parametrize("text", ["0.0.0.0:8090", "10.0.0.7:8090", "[::]:8090", "example.org:8090"])
def test_strangers_do_not_see_through_the_cameras(text: str) -> None:
    with pytest.raises(InvalidArgument, match="ssh -L 8090"):
        own_place(text)


def test_a_place_is_a_port_or_an_address_of_this_machine() -> None:
    assert own_place("8090") == ListenPlace("127.0.0.1", 8090)
    assert own_place("localhost:1") == ListenPlace("localhost", 1)
    assert own_place("[::1]:2") == ListenPlace("::1", 2)
    for wrong in ("", "x", "127.0.0.1:"):
        with pytest.raises(InvalidArgument, match="PORT"):
            own_place(wrong)
    first = own_place("0").listen("--view")
    with pytest.raises(InvalidArgument, match="port 0 takes a free one"):
        own_place(str(first.getsockname()[1])).listen("--view")
    first.close()
