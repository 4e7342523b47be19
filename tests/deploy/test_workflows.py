"""The workflows of a user's CI fit their schema, and call what judges."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.commands import ROOT

WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


def fits(path: Path) -> bool:
    program = Path(sys.executable).with_name("check-jsonschema")
    command = [program, "--builtin-schema", "vendor.github-workflows", path]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def test_the_workflow_fits_its_schema_and_a_planted_error_does_not(tmp_path: Path) -> None:
    assert fits(WORKFLOW)
    planted = tmp_path / "ci.yml"
    planted.write_text(WORKFLOW.read_text().replace("runs-on:", "run-on:"))
    assert not fits(planted)


def test_the_workflow_runs_all_checks_and_the_latency_gate_is_one_of_them() -> None:
    assert ".ci/run" in WORKFLOW.read_text()
    assert "swarm bench regression" in (ROOT / ".ci" / "run").read_text()
