"""Nothing leaves a device with a mask but frames whose regions are filled."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.cameras.frame import Frame
from nodes.cameras.mask.door import (
    Cleared,
    MaskDetector,
    Masked,
    MaskingDoor,
    OpenDoor,
    Unmasked,
    Withheld,
    image_of,
)
from nodes.cameras.mask.proof import FACE, MaskProof, drawn_face
from nodes.cameras.mask.regions import FILL, BadBoxes, MaskRule, checked, filled, pixels
from swarm.errors import InvalidArgument

RED = (250, 10, 10)
PROOF = np.full((40, 40, 3), 90, np.uint8)
PROOF[10:20, 10:20] = RED
QUICK = MaskRule(within=0.3)


def picture(*squares: tuple[int, int]) -> np.ndarray:
    """A room with red squares of 20 pixels, at left and top."""
    image = np.random.default_rng(1).integers(0, 200, (120, 160, 3)).astype(np.uint8)
    for left, top in squares:
        image[top : top + 20, left : left + 20] = RED
    return image


def frame(image: np.ndarray, number: int = 0) -> Frame:
    return Frame(image, number / 30, number)


class FindsRed:
    """A detector of one red thing."""

    def find(self, image: np.ndarray) -> np.ndarray:
        rows, columns = np.nonzero((image == RED).all(axis=-1))
        if not len(rows):
            return np.zeros((0, 4), np.float32)
        height, width = image.shape[:2]
        box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        return np.array([box], np.float32) / np.float32([width, height, width, height])


class Gives:
    """A detector that gives what it is told, however it is asked."""

    def __init__(self, *boxes: tuple[float, ...]) -> None:
        self.boxes = np.array(boxes, np.float32)

    def find(self, image: np.ndarray) -> np.ndarray:
        return self.boxes if len(self.boxes) else np.zeros((0, 4), np.float32)


class Raises:
    def find(self, image: np.ndarray) -> np.ndarray:
        raise RuntimeError("the session is broken")


def door(detector: MaskDetector | None, rule: MaskRule = QUICK) -> MaskingDoor:
    return MaskingDoor(rule, MaskProof(PROOF, None), detector)


@pytest.fixture
def doors() -> Iterator[Callable[..., MaskingDoor]]:
    """Doors that are closed behind the test."""
    made: list[MaskingDoor] = []

    def make(*arguments: object, **more: object) -> MaskingDoor:
        made.append(door(*arguments, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()


Doors = Callable[..., MaskingDoor]


# --- what is filled ---------------------------------------------------------------------


shares = st.floats(-0.5, 1.5)
boxes = st.lists(st.tuples(shares, shares, st.floats(0, 1), st.floats(0, 1)), max_size=6)


@given(boxes, st.floats(0, 1), st.integers(1, 60), st.integers(1, 60))
def test_all_of_a_box_with_its_margin_holds_one_value_and_all_else_is_as_it_was(
    found: list[tuple[float, ...]], margin: float, height: int, width: int
) -> None:
    image = np.random.default_rng(2).integers(0, 256, (height, width, 3)).astype(np.uint8)
    image[image == FILL] = FILL + 1
    array = np.array([(x, y, x + w, y + h) for x, y, w, h in found]).reshape(-1, 4)
    regions = pixels(checked(array), margin, height, width)
    masked = filled(image, regions)
    inside = np.zeros((height, width), bool)
    for left, top, right, bottom in regions:
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        inside[top:bottom, left:right] = True
    assert (masked[inside] == FILL).all()
    assert (masked[~inside] == image[~inside]).all()
    across, down = (np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height
    for (x0, y0, x1, y1), (w, h) in zip(array, [box[2:] for box in found], strict=True):
        columns = (across > x0 - margin * w) & (across < x1 + margin * w)
        rows = (down > y0 - margin * h) & (down < y1 + margin * h)
        assert inside[np.ix_(rows, columns)].all()


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros(4),
        np.zeros((3, 5)),
        np.full((1, 4), np.nan),
        np.array([[0.5, 0.5, np.inf, 0.9]]),
        np.array([[0.9, 0.1, 0.1, 0.9]]),
        np.zeros((5000, 4)),
    ],
)
def test_what_is_no_box_is_refused(wrong: np.ndarray) -> None:
    with pytest.raises(BadBoxes, match="detector"):
        checked(wrong)


async def test_a_region_stays_filled_for_five_frames_and_its_old_place_too(doors: Doors) -> None:
    """The detector misses the square from the second frame on: the union still covers it."""
    here, there = (40, 30), (100, 60)
    each = doors(FindsRed())
    values = []
    shown = [picture(here), picture(there), *(picture() for _ in range(6))]
    for number, image in enumerate(shown):
        masked = await each.clear(frame(image, number))
        assert isinstance(masked, Masked)
        out = image_of(masked)
        values.append([(out[y : y + 20, x : x + 20] == FILL).all() for x, y in (here, there)])
    assert values == [
        [True, False],
        [True, True],
        [True, True],
        [True, True],
        [True, True],
        [False, True],
        [False, False],
        [False, False],
    ]


async def test_the_cameras_own_frame_is_not_written_into(doors: Doors) -> None:
    image = picture((40, 30))
    before = image.copy()
    masked = await doors(FindsRed()).clear(frame(image, 7))
    assert isinstance(masked, Masked)
    assert (image == before).all()
    assert (masked.frame.sequence, masked.frame.captured) == (7, 7 / 30)
    assert len(masked.regions) == len(masked.found) == 1


async def test_frames_that_come_together_pass_in_their_order(doors: Doors) -> None:
    each = doors(FindsRed())
    passed = await asyncio.gather(*(each.clear(frame(picture((40, 30)), n)) for n in range(4)))
    assert [masked.frame.sequence for masked in passed if isinstance(masked, Masked)] == [
        0,
        1,
        2,
        3,
    ]


# --- who may clear a frame --------------------------------------------------------------


def test_only_a_door_clears_a_frame() -> None:
    raw = frame(picture())
    for make in (
        lambda: Cleared(raw, object()),
        lambda: Unmasked(raw, None),
        lambda: Masked(raw, (), np.zeros((0, 4)), "seal"),
    ):
        with pytest.raises(TypeError, match="only a Door"):
            make()
    with pytest.raises(TypeError, match="has not passed the door"):
        image_of(raw)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="has not passed the door"):
        image_of(Withheld("late", ""))  # type: ignore[arg-type]


async def test_an_edge_without_a_mask_lets_its_frames_through() -> None:
    raw = frame(picture())
    cleared = await OpenDoor().clear(raw)
    assert isinstance(cleared, Unmasked)
    assert image_of(cleared) is raw.image


# --- it fails closed --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("detector", "why"),
    [
        (None, "no-detector"),
        (Raises(), "error"),
        (Gives(), "unproven"),
        (Gives((0.1, 0.1, 0.2)), "error"),
        (Gives((0.1, 0.1, 0.2, float("nan"))), "error"),
        (Gives((0.9, 0.9, 0.2, 0.2)), "error"),
    ],
)
async def test_without_a_detector_that_finds_nothing_leaves(
    detector: MaskDetector | None, why: str, doors: Doors
) -> None:
    each = doors(detector)
    for number in range(3):
        withheld = await each.clear(frame(picture((40, 30)), number))
        assert isinstance(withheld, Withheld)
        assert withheld.why == why
    assert (each.masked, each.withheld) == (0, {why: 3})
    assert each.status()["state"] == "closed"


async def test_a_detector_that_finds_nothing_any_more_lets_no_frame_leave(doors: Doors) -> None:
    """It worked, and is replaced by one that says "nothing" to everything: not one frame passes."""
    each = doors(FindsRed())
    assert isinstance(await each.clear(frame(picture((40, 30)))), Masked)
    working = FindsRed()
    each.use(Gives())
    assert isinstance(await each.clear(frame(picture((40, 30)), 1)), Withheld)
    each.use(working)
    assert isinstance(await each.clear(frame(picture((40, 30)), 2)), Masked)
    working.find = Gives().find  # type: ignore[method-assign]  # it breaks without a word
    for number in range(3, 9):
        assert isinstance(await each.clear(frame(picture((40, 30)), number)), Withheld)


async def test_an_empty_room_leaves_as_long_as_the_detector_proves_itself(doors: Doors) -> None:
    masked = await doors(FindsRed()).clear(frame(picture()))
    assert isinstance(masked, Masked)
    assert (image_of(masked) == picture()).all()


async def test_a_detector_of_boxes_anywhere_proves_itself_again_after_a_while() -> None:
    """It gives the same box whatever it sees: the proof's face is elsewhere."""
    clock = [100.0]
    image = drawn_face()
    finds = Gives(FACE)
    each = MaskingDoor(QUICK, MaskProof(image, FACE), finds, lambda: clock[0])
    assert isinstance(await each.clear(frame(picture())), Masked)
    finds.boxes = np.array([[0.0, 0.0, 0.1, 0.1]], np.float32)
    assert isinstance(await each.clear(frame(picture())), Masked)
    clock[0] += 31
    assert isinstance(await each.clear(frame(picture())), Withheld)
    each.close()


class InAProcess:
    """A detector in a process of its own, as a driver's service would be: it can be killed, and
    stopped."""

    CODE = """
import sys
while line := sys.stdin.readline():
    print("0.25 0.25 0.45 0.45", flush=True)
"""

    def __init__(self) -> None:
        command = [sys.executable, "-c", self.CODE]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def find(self, image: np.ndarray) -> np.ndarray:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("find\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        return np.array([[float(word) for word in line.split()]])

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def service() -> Iterator[InAProcess]:
    detector = InAProcess()
    yield detector
    detector.end()


async def test_a_detector_that_is_killed_lets_no_frame_leave(
    service: InAProcess, doors: Doors
) -> None:
    each = doors(service, MaskRule(within=20.0))
    assert isinstance(await each.clear(frame(picture())), Masked)
    service.process.kill()
    service.process.wait(10)
    for number in range(3):
        assert isinstance(await each.clear(frame(picture(), number)), Withheld)
    assert each.masked == 1


async def test_a_detector_that_hangs_lets_no_frame_leave_and_no_late_answer_does(
    service: InAProcess, doors: Doors
) -> None:
    each = doors(service, MaskRule(within=20.0))
    assert isinstance(await each.clear(frame(picture())), Masked)
    each.rule = MaskRule(within=0.1)
    os.kill(service.process.pid, signal.SIGSTOP)
    outcomes = [await each.clear(frame(picture(), number)) for number in range(3)]
    assert [each.why for each in outcomes if isinstance(each, Withheld)] == ["late", "hung", "hung"]
    assert each.masked == 1
    os.kill(service.process.pid, signal.SIGCONT)
    each.rule = MaskRule(within=20.0)
    for _ in range(600):
        if isinstance(await each.clear(frame(picture())), Masked):
            break
        await asyncio.sleep(0.05)  # until the late answer has come, and is thrown away
    assert each.status()["state"] == "open"


# --- the proof --------------------------------------------------------------------------


def test_a_proof_that_is_no_picture_is_refused(tmp_path: object) -> None:
    with pytest.raises(InvalidArgument, match="--mask-proof"):
        MaskProof.of("/nowhere.png")
    with pytest.raises(InvalidArgument, match="no picture"):
        MaskProof.of(__file__)


def test_a_box_elsewhere_is_no_proof() -> None:
    proof = MaskProof.of()
    assert proof.is_shown_by(np.array([FACE]))
    assert not proof.is_shown_by(np.array([[0.0, 0.0, 0.2, 0.2]]))
    assert not proof.is_shown_by(np.array([[0.0, 0.0, 1.0, 1.0]]))
    assert not proof.is_shown_by(np.zeros((0, 4)))
