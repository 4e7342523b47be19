"""The benchmarks of a camera's edge: what they count, and a short run of each."""

from __future__ import annotations

import numpy as np
import pytest

from bench.cameras.core_cameras import CORE, CorePlan
from bench.cameras.crops import CROPS, CropsPlan
from bench.cameras.face_camera import LOOP
from bench.cameras.gate import GATE, GatePlan
from bench.cameras.guard import GUARD, GuardPlan
from bench.cameras.mask import MASK, MaskPlan
from bench.rivals.ultraface import NoModel, ultraface_file

BOX, FAR_BOX = np.array([10.0, 10, 60, 80]), np.array([300.0, 10, 350, 80])


def detector() -> None:
    """Skips where the trained detector is absent."""
    pytest.importorskip("skimage")
    try:
        ultraface_file()
    except NoModel as error:
        pytest.skip(str(error))


@pytest.mark.benchmark
def test_the_gate_skips_a_still_picture_and_sees_a_face_that_pops_up() -> None:
    detector()
    document = GATE.document(GatePlan((5,), ("pop-up",), 22))
    assert document["passed"], document["missed"]
    rows = {row["gate"]: row for row in document["rows"]}
    assert rows["ssim-min:0.3"]["skipped"] > 0.6
    assert rows["ssim-min:0.3"]["wrong"] == 0
    assert rows["every 5."]["wrong"] > 0
    assert document["cpu_share"] < 0.8


@pytest.mark.benchmark
def test_cards_that_stand_still_keep_their_digits_and_a_new_card_gets_its_own() -> None:
    document = CROPS.document(CropsPlan(cards=2))
    assert document["passed"], document["missed"]
    rows = {row["alike"]: row for row in document["rows"]}
    assert 0.5 < rows[0.95]["kept"] < 0.8
    assert rows[0.8]["wrong"] == 0


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
