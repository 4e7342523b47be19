"""The benchmarks of a camera's edge: what they count, and a short run of each."""

from __future__ import annotations

import numpy as np
import pytest

from bench.perception.gate import GATE, Counts, GatePlan, is_same
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
