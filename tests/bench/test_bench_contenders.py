"""The peer benchmark measures what it claims: right outputs, whole chains, nothing left behind."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bench.rivals.networks import build_workload
from bench.rivals.peers_client import Load, measure
from bench.rivals.peers_runner import Entrant, run_client
from bench.rivals.systems.inprocess import InProcess
from bench.rivals.workload import Tensors, Workload

QUICK = Load(warmup=2, sequential=5, concurrent=20)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    build_workload(directory, "tiny")
    return directory


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
