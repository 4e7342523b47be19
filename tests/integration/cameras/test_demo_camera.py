"""`swarm demo --camera` loses no frame through a kill, and says what it saw."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import commands
from support.waiting import eventually_now

pytest.importorskip("av")
pytest.importorskip("cv2")

from nodes.cameras.demo.model import TASK, camera_model
from nodes.cameras.demo.record import CameraRecord, broken, is_true, summarise
from nodes.cameras.demo.scene import TURN, card, draw
from shards.runtimes.ort import OrtRuntime

RATE = 30


def line(sequence: int, number: int, **more: Any) -> dict[str, Any]:
    """The result's line of the camera's frame of this number."""
    shown = card(number)
    found = {"box": shown.box.tolist(), "score": 1.0, "class": shown.digit}
    hops = [{"stage": 2, "node": "shard-2-a"}]
    told = {"source": "cam-1", "sequence": sequence, "status": "OK", "hops": hops}
    return told | {"age_ms": 10.0, "decode_ms": 1.0, "detections": [found]} | more


def test_the_detector_reads_the_card_of_every_turn() -> None:
    runtime = OrtRuntime(camera_model())
    for number in range(3, 32 * TURN, TURN):
        image = draw(number)
        image = np.clip(image + np.random.default_rng(number).normal(0, 4, image.shape), 0, 255)
        image = image.astype(np.uint8)
        found = TASK.read(runtime.run(TASK.prepare(image)), image.shape)
        box, digit = found.boxes[0].tolist(), int(found.classes[0])  # type: ignore[union-attr]
        assert is_true([{"box": box, "class": digit}], number), number
    runtime.close()


def test_an_answer_is_true_only_of_the_card_that_was_shown() -> None:
    shown = card(100)
    true = {"box": shown.box.tolist(), "class": shown.digit}
    assert is_true([true], 101)
    assert not is_true([], 101)
    assert not is_true([true, true], 101)
    assert not is_true([true | {"class": (shown.digit + 1) % 10}], 101)
    assert not is_true([true | {"box": (shown.box + 0.1).tolist()}], 101)
    assert not is_true([true], 101 + TURN * 2)


def test_a_lost_frame_a_wrong_answer_an_old_frame_and_no_takeover_break_a_promise() -> None:
    record = CameraRecord(RATE, began=0.0)
    record.take(line(0, 30), 1.0)
    record.take(line(0, 30, repeats=0), 1.1)
    record.takeover.killed_at = record.takeover.restarted_at = 1.2
    record.take(line(1, 60, hops=[{"stage": 2, "node": "fallback-1"}]), 2.0)
    record.take(line(2, 90), 3.0)
    good = summarise(record, 3, 3000.0)
    assert broken(good) == []
    assert good["skipped_share"] == 0.25
    assert broken(good | {"age_allowed_ms": 5.0}) == ["a frame was 10 ms old at its result, of 5"]
    assert broken(summarise(record, 4, 3000.0)) == ["1 frames that were sent have no answer"]
    record.take(line(3, 120, detections=[]), 4.0)
    record.take(line(4, 150, status="UNAVAILABLE"), 5.0)
    assert len(broken(summarise(record, 5, 3000.0))) == 2
    assert len(broken(good | {"takeover_ms": None})) == 1
    assert len(broken(good | {"sent": 0})) == 1


@pytest.mark.integration
@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.benchmark  # a whole story, longer than ten seconds
def test_no_frame_is_lost_through_a_kill_and_each_answer_is_true(tmp_path: Path) -> None:
    with commands(tmp_path / "commands") as run:
        command = run.start("nodes.cli.main", "demo", "--camera", "--seconds", "6", "--json")
        assert command.wait(90.0) == 0, command.stdout + command.stderr
        doc = json.loads(command.stdout)
        assert (doc["lost"], doc["wrong"], doc["broken"]) == (0, 0, [])
        assert doc["answered"] == doc["sent"] > 10
        assert 0.2 < doc["skipped_share"] < 0.95
        assert 0 < doc["age_p50_ms"] <= doc["age_p99_ms"] <= doc["age_max_ms"]
        assert doc["takeover_ms"] > 0
        assert not command.remaining()


@pytest.mark.integration
@pytest.mark.processes
@pytest.mark.slow
def test_ctrl_c_in_mid_stream_leaves_no_process(tmp_path: Path) -> None:
    with commands(tmp_path / "commands") as run:
        command = run.start("nodes.cli.main", "demo", "--camera", "--json")
        eventually_now(lambda: "see it at" in command.stderr, "the stream", 90.0)
        command.signal(signal.SIGINT)
        assert command.wait(30.0) == 130
        command.leaves_nothing()
