"""Pipelines: right answers under load, fair floors, and what overlap means."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from bench.cost.closed_loop import Sample, WorkerLoad
from bench.cost.pipelines import EXPECTED_FILE, build_pipeline
from bench.cost.throughput import ThroughputPlan, measure_throughput, show, summarise
from bench.rivals.ultraface import NoModel, ultraface_file


def sample(per_s: float, latency: float) -> Sample:
    return Sample([latency] * 10, [number / per_s for number in range(10)], 2, 0.1)


def test_throughput_is_that_of_a_full_pipeline() -> None:
    """Three in flight: two ends fill the pipeline, the last three requests leave it empty."""
    filling, steady, emptying = [1.0, 2.0], [3.0, 3.5, 4.0, 4.5], [5.5, 6.5, 7.5]
    assert Sample([0.1] * 9, filling + steady + emptying, 3, 0.1).per_s == pytest.approx(2.0)


def test_overlap_is_throughput_times_the_latency_of_a_lone_request() -> None:
    samples = {}
    for level, rate in ((1, 50.0), (4, 125.0)):
        samples["mesh", level] = [sample(rate, 0.02)]
        samples["up", level] = [sample(0.8 * rate, 0.02)]
        samples["workers", level] = [sample(100.0, 0.01)]
        samples["whole", level] = [sample(50.0, 0.02)]
    figures = summarise(samples, (1, 4))
    assert figures["1/mesh/overlap"].value == pytest.approx(1.0)
    assert figures["4/mesh/overlap"].value == pytest.approx(2.5)
    assert figures["4/mesh/requests_per_s_over_workers"].value == pytest.approx(1.25)
    assert figures["4/mesh/requests_per_s_over_whole"].better == "higher"
    assert figures["mesh/best_over_workers"].value == pytest.approx(1.25)
    assert figures["up/best_over_workers"].value == pytest.approx(1.0)
    assert figures["1/mesh/cpu_ms_per_request"].value == pytest.approx(10.0)


def test_an_absent_detector_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWARM_TEST_MODELS", str(tmp_path))
    with pytest.raises(NoModel, match="--ultraface"):
        ultraface_file()
    (tmp_path / "ultraface").mkdir()
    (tmp_path / "ultraface" / "some.onnx").write_bytes(b"")
    assert ultraface_file().name == "some.onnx"


@pytest.mark.processes
def test_a_floors_processes_share_the_requests_and_notice_a_wrong_answer(tmp_path: Path) -> None:
    pipeline = build_pipeline("digits", tmp_path / "digits", 3)
    directory = pipeline.workload.directory
    load = WorkerLoad(directory, "stages", 1, 2)
    try:
        found = load.run(7, 2)
        assert len(found.latencies) == 7
        assert found.per_s > 0
        assert found.ends == sorted(found.ends)
        assert len(load.run(3, 1).latencies) == 3
    finally:
        load.stop()
    with np.load(directory / EXPECTED_FILE) as arrays:
        np.savez(directory / EXPECTED_FILE, **{name: arrays[name] + 1 for name in arrays.files})
    command = [
        sys.executable,
        "-m",
        "bench.cost.floor_process",
        str(directory),
        "whole",
        "1",
    ]
    done = subprocess.run(command, input="2\n", capture_output=True, text=True, timeout=60)
    ready, line = done.stdout.splitlines()
    assert ready == "ready"
    assert json.loads(line)["wrong"] == "logits differs"


@pytest.mark.benchmark
@pytest.mark.processes
@pytest.mark.integration
def test_a_pipeline_is_measured_beside_its_floors_and_every_answer_is_compared() -> None:
    before = set(psutil.Process().children(recursive=True))
    plan = ThroughputPlan(["digits"], (1, 4), rounds=1, seconds=0.2)
    document = json.loads(json.dumps(measure_throughput(plan)))
    assert not set(psutil.Process().children(recursive=True)) - before
    (pipeline,) = document["pipelines"]
    assert pipeline["verified"] >= 2 * 4 * 12
    assert pipeline["met"] is None
    figures = document["figures"]
    for level in (1, 4):
        for floor in ("workers", "whole"):
            for own in ("mesh", "up"):
                assert figures[f"digits/{level}/{own}/requests_per_s_over_{floor}"]["floor"]
        for own in ("mesh", "up"):
            assert figures[f"digits/{level}/{own}/cpu_ms_per_request"]["value"] > 0
            assert figures[f"digits/{level}/{own}/p50_ms"]["value"] > 0
    show(document)
    assert document["unavailable"] == {}
