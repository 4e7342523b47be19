"""The peer benchmark measures what it claims: right outputs, whole chains, nothing left behind."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from bench.rivals.catalogue import CONTENDERS, FLOOR, contender_class
from bench.rivals.contract import missing_packages
from bench.rivals.networks import build_workload
from bench.rivals.peers import document, summarise
from bench.rivals.peers_client import Load, measure
from bench.rivals.peers_runner import Entrant, run_client, run_peers
from bench.rivals.systems.inprocess import InProcess
from bench.rivals.workload import Tensors, Workload, pack, unpack

QUICK = Load(warmup=2, sequential=5, concurrent=20)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    build_workload(directory, "tiny")
    return directory


def test_the_tiny_workload_has_three_stages_and_features_of_four_kibibytes(tiny: Path) -> None:
    workload = Workload.load(tiny)
    assert workload.stages == 3
    assert workload.feature_bytes == [4096, 4096]


def test_the_large_workload_has_features_between_0_8_and_1_7_megabytes(tmp_path: Path) -> None:
    build_workload(tmp_path, "large")
    workload = Workload.load(tmp_path)
    assert [800_000 <= size <= 1_700_000 for size in workload.feature_bytes] == [True, True]


def test_the_same_seed_builds_the_same_stages(tiny: Path, tmp_path: Path) -> None:
    build_workload(tmp_path, "tiny")
    for file in ("stage-1.onnx", "stage-3.onnx", "meta.json"):
        assert (tmp_path / file).read_bytes() == (tiny / file).read_bytes()


def test_raw_bytes_carry_the_tensors_and_a_wrong_length_is_refused(tiny: Path) -> None:
    workload = Workload.load(tiny)
    data = bytes(pack(workload.input, workload.inputs[0]))
    restored = unpack(data, workload.inputs[0])
    assert np.array_equal(restored["image"], workload.input["image"])
    with pytest.raises(ValueError, match="bytes for"):
        unpack(data[:-1], workload.inputs[0])


def test_a_wrong_output_is_noticed(tiny: Path) -> None:
    workload = Workload.load(tiny)
    (name,) = workload.expected
    assert workload.mismatch(workload.expected) is None
    assert workload.mismatch({name: workload.expected[name] + 0.01}) is not None
    assert workload.mismatch({}) is not None


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "processes"),
    [
        ("inprocess", 1),
        ("nats_core", 5),
        ("nats_jetstream", 5),
        ("nats_pull", 5),
        ("pyzmq", 4),
        ("zenoh", 4),
    ],
)
def test_a_contender_answers_every_request_correctly_and_leaves_no_process(
    name: str, processes: int, tiny: Path
) -> None:
    if missing := missing_packages(contender_class(name).packages):
        pytest.skip(f"not installed: {', '.join(missing)}")
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    row = run_client(Entrant(name, name, Path(sys.executable)), tiny, QUICK, timeout=60)
    assert row["status"] == "ok", row
    assert row["verified"] == QUICK.sequential + QUICK.concurrent
    assert row["processes"] == processes
    assert "stop_reason" not in row
    after = {process.pid for process in psutil.Process().children(recursive=True)}
    assert after <= before


@pytest.mark.processes
def test_a_contender_whose_package_is_missing_says_which_and_how_to_install_it(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tiny / "absent_contender.py"
    module.write_text(
        "from bench.rivals.systems.inprocess import InProcess\n"
        "class Absent(InProcess):\n"
        "    packages = ('no_such_package_anywhere',)\n"
        "    install = 'pip install anywhere'\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tiny), prepend=os.pathsep)
    entrant = Entrant("absent", "absent_contender:Absent", Path(sys.executable))
    row = run_client(entrant, tiny, QUICK, timeout=60)
    assert row["status"] == "unavailable"
    assert row["reason"] == (
        "not installed: no_such_package_anywhere; install with: pip install anywhere"
    )


def test_a_contender_that_answers_wrongly_fails_instead_of_being_ranked(
    tiny: Path, tmp_path: Path
) -> None:
    class Wrong(InProcess):
        def request(self, inputs: Tensors) -> Tensors:
            return {name: array * 1.01 for name, array in super().request(inputs).items()}

    workload = Workload.load(tiny)
    row = measure(Wrong(workload, tmp_path), workload, QUICK)
    assert row["status"] == "failed"
    assert "wrong output" in row["reason"]


@pytest.mark.processes
def test_rounds_are_interleaved_and_the_document_is_json() -> None:
    seen: list[tuple[int, str]] = []
    python = Path(sys.executable)
    rows, workloads = run_peers(
        [Entrant("inprocess", "inprocess", python), Entrant("ours", CONTENDERS[FLOOR], python)],
        kinds=["tiny"],
        rounds=2,
        loads={"tiny": QUICK},
        on_row=lambda row: seen.append((row["round"], row["contender"])),
    )
    assert seen == [(1, "inprocess"), (1, "ours"), (2, "ours"), (2, "inprocess")]
    result = json.loads(json.dumps(document(rows, workloads, 2)))
    assert [entry["status"] for entry in result["summary"]] == ["ok", "ok"]


def test_the_price_of_a_hop_is_taken_from_the_floor_of_the_same_round(tiny: Path) -> None:
    def row(name: str, number: int, p50: float) -> dict[str, object]:
        figures = dict.fromkeys(("requests_per_s", "cpu_ms_per_request", "rss_mb", "pss_mb"), 1.0)
        return {
            "contender": name,
            "workload": "tiny",
            "round": number,
            "status": "ok",
            "p50_ms": p50,
            "p99_ms": 2 * p50,
            "ready_s": 0.0,
            "processes": 1,
            "in_flight": 16,
            "verified": 5,
            **figures,
        }

    rows = [
        row("inprocess", 1, 1.0),
        row("chain", 1, 4.0),
        row("inprocess", 2, 3.0),
        row("chain", 2, 6.0),
    ]
    summary = {entry["contender"]: entry for entry in summarise(rows, {"tiny": 3})}
    assert summary["chain"]["per_hop_ms"] == pytest.approx(1.0)
    assert summary["inprocess"]["per_hop_ms"] == pytest.approx(0.0)
    assert summary["chain"]["p99_over_p50"] == pytest.approx(2.0)
    rows.append({**row("chain", 3, 1.0), "status": "failed", "reason": "wrong output"})
    (entry,) = [e for e in summarise(rows, {"tiny": 3}) if e["contender"] == "chain"]
    assert entry["status"] == "failed"
    assert document(rows, {"tiny": Workload.load(tiny)}, 3)["workloads"]["tiny"]["stages"] == 3
