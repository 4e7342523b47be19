"""`swarm bench weights`: it measures a real mesh, and its judge sees an answer that is torn."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from bench.fleets.weight_updates import CASES, Answer, changed_block, changed_head, count_torn
from bench.fleets.weights import WeightsPlan, measure_weights, misses
from shards.runtimes.ort import make_session
from shards.split.split import split
from shards.zoo import digits_heldout, digits_model

LEARNED = split(digits_model(), name="digits", stages=3, profile=False).files["stage-3.onnx"]
INPUTS = {"image": digits_heldout()[0][:2]}


@pytest.mark.benchmark
@pytest.mark.processes
async def test_updates_under_load_lose_and_tear_no_answer() -> None:
    document = await measure_weights(WeightsPlan(("digits",), 6, 0.1, 1), lambda text: None)
    case = document["cases"]["digits"]
    assert (case["lost"], case["torn"]) == (0, 0)
    assert case["weight_versions_seen"] >= 3
    assert case["requests"] > 10
    assert min(case["p99_ratio"], case["take_p50_ms"], case["memory_before_mb"]) > 0


def test_the_judge_counts_an_answer_of_other_weights_and_one_that_differs_by_a_bit() -> None:
    session = make_session(digits_model(), level="basic")
    right = [
        Answer(i, 0, session.run(None, {"image": INPUTS["image"][i : i + 1]})[0].tobytes())
        for i in range(2)
    ]
    changes = partial(changed_head, LEARNED)
    assert count_torn(digits_model(), INPUTS, changes, right) == 0
    wrong = [replace(right[0], weights=1), replace(right[0], index=1)]
    flipped = bytearray(right[0].values)
    flipped[0] ^= 1
    wrong.append(replace(right[0], values=bytes(flipped)))
    assert count_torn(digits_model(), INPUTS, changes, right + wrong) == 3


@pytest.mark.parametrize("changes", [changed_head, changed_block])
def test_a_weight_version_is_the_same_for_the_node_and_for_the_judge(changes: Any) -> None:
    one, again, other = changes(LEARNED, 3), changes(LEARNED, 3), changes(LEARNED, 4)
    assert all(np.array_equal(one[name], again[name]) for name in one)
    assert any(not np.array_equal(one[name], other[name]) for name in one)


def test_each_missed_target_is_named() -> None:
    good = {"lost": 0, "torn": 0, "p99_ratio": 1.2, "take_p50_ms": 1.0, "memory_mb": {"1": 50.0}}
    assert misses({"cases": {"digits": good}}) == []
    bad = good | {"lost": 1, "p99_ratio": 1.4, "take_p50_ms": 3.0, "memory_mb": {"1": 1, "9": 2}}
    assert len(misses({"cases": {"digits": bad}})) == 4
    assert len(misses({"cases": {"resnet50": good | {"torn": 2}}})) == 1
    assert set(CASES) == {"digits", "resnet50"}
