"""Pipelines: right answers under load, fair floors, and what overlap means."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from bench.cost.throughput import ThroughputPlan, measure_throughput, show
from bench.rivals.ultraface import NoModel, ultraface_file


def test_an_absent_detector_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWARM_TEST_MODELS", str(tmp_path))
    with pytest.raises(NoModel, match="--ultraface"):
        ultraface_file()
    (tmp_path / "ultraface").mkdir()
    (tmp_path / "ultraface" / "some.onnx").write_bytes(b"")
    assert ultraface_file().name == "some.onnx"


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
