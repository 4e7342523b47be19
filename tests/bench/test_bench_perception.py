"""The benchmarks of a camera's edge: what they count, and a short run of each."""

from __future__ import annotations

import numpy as np
import pytest

from bench.perception.cameras import ONE, Heard, misses, row_of
from bench.perception.core_cameras import CORE, CorePlan
from bench.perception.crops import CROPS, CropsPlan
from bench.perception.face_camera import LOOP, pictures
from bench.perception.gate import GATE, Counts, GatePlan, is_same
from bench.perception.guard import GUARD, GuardPlan, auroc
from bench.perception.mask import MASK, MaskPlan, face_of, holds_one_value
from bench.rivals.ultraface import NoModel, ultraface_file

BOX, FAR_BOX = np.array([10.0, 10, 60, 80]), np.array([300.0, 10, 350, 80])


def detector() -> None:
    """Skips where the trained detector is absent."""
    pytest.importorskip("skimage")
    try:
        ultraface_file()
    except NoModel as error:
        pytest.skip(str(error))


def test_a_repeated_result_is_wrong_when_the_face_came_went_or_moved() -> None:
    assert is_same(BOX, BOX + 3)
    assert is_same(None, None)
    assert not is_same(BOX, FAR_BOX)
    assert not is_same(None, BOX)
    assert not is_same(BOX, None)
    counts = Counts()
    counts.add("clip", [True, False, False, True], [BOX, BOX, None, None])
    row = counts.row("gate")
    assert (row["skipped"], row["wrong"], row["worst_clip"]) == (0.5, 0.25, "clip")


def test_the_gate_skips_a_still_picture_and_sees_a_face_that_pops_up() -> None:
    detector()
    document = GATE.document(GatePlan((5,), ("pop-up",), 22))
    assert document["passed"], document["missed"]
    rows = {row["gate"]: row for row in document["rows"]}
    assert rows["ssim-min:0.3"]["skipped"] > 0.6
    assert rows["ssim-min:0.3"]["wrong"] == 0
    assert rows["every 5."]["wrong"] > 0
    assert document["cpu_share"] < 0.8


def test_cards_that_stand_still_keep_their_digits_and_a_new_card_gets_its_own() -> None:
    document = CROPS.document(CropsPlan(cards=2))
    assert document["passed"], document["missed"]
    rows = {row["alike"]: row for row in document["rows"]}
    assert 0.5 < rows[0.95]["kept"] < 0.8
    assert rows[0.8]["wrong"] == 0


def test_a_spoilt_picture_that_is_always_further_has_an_area_of_one() -> None:
    usual, strange = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    assert auroc(usual, strange) == 1.0
    assert auroc(strange, usual) == 0.0
    assert auroc(usual, usual) == 0.5


def test_a_face_counts_as_filled_when_all_of_it_holds_one_value() -> None:
    image = np.full((480, 640, 3), 127, np.uint8)
    rows, columns = face_of((100.0, 100, 200, 220))
    assert holds_one_value(image[rows, columns])
    image[rows.stop - 1, columns.stop - 1, 2] = 128
    assert not holds_one_value(image[rows, columns])


@pytest.mark.slow
@pytest.mark.benchmark
def test_a_hundred_masked_frames_show_no_face_to_two_other_detectors() -> None:
    detector()
    plan = MaskPlan(frames=100, length=25, clips=("walk", "pan", "zoom", "pop-up"), faces=0)
    document = MASK.document(plan)
    assert document["frames"] == 100
    assert document["with_face"] > 75
    assert document["open"] == {}
    assert document["found_again"] == {"ultraface": 0, "cascade": 0}
    assert document["looked_again"]["cascade"] > 5


@pytest.mark.benchmark
def test_a_guard_raises_no_alarm_on_a_quiet_day_and_sees_spoilt_pictures() -> None:
    detector()
    document = GUARD.document(GuardPlan(900, (31,)))
    assert document["passed"], document["missed"]
    assert document["by_corruption"]["random pixels"] == [1.0, 1.0]


@pytest.mark.benchmark
def test_a_jpeg_shows_the_core_the_faces_of_the_pixels_in_a_tenth_of_the_bytes() -> None:
    detector()
    rows = {row["way"]: row for row in CORE.document(CorePlan(0.5, 1))["rows"]}
    assert rows["raw"]["faces"] == rows["all-edge"]["faces"] == LOOP
    assert rows["jpeg:85"]["faces"] >= LOOP - 2
    assert rows["jpeg:85"]["bytes"] < rows["raw"]["bytes"] / 10
    assert {way for way, row in rows.items() if "rounds" in row} == {"raw", "jpeg:85", "split"}


def test_the_age_of_a_frame_is_told_by_the_place_of_its_face() -> None:
    pytest.importorskip("skimage")
    faces = pictures()[1]
    # The receiver misses 30 frames, and its detector's boxes are larger and higher than the face.
    heard = [
        Heard(
            100.0 + (number + 30) / 30 + 0.012,
            number,
            [
                [
                    edge + by
                    for edge, by in zip(faces[(number + 30) % LOOP], (-5, -9, 5, 3), strict=True)
                ]
            ],
        )
        for number in range(60)
    ]
    row = row_of(ONE, "udp", 100.0, heard)
    assert (row["faces"], row["answered"]) == (60, 60)
    assert row["age_p50_ms"] == row["age_p99_ms"] == 12.0
    heard[3].boxes = []
    document = {"rows": [row_of(ONE, "udp", 100.0, heard) | {"sent": 61}]}
    assert len(misses(document)) == 2
