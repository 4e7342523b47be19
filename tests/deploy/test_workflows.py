"""The workflows of a user's CI fit their schema, and call what judges."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.commands import ROOT

NEEDS_A_MODEL = "tests/integration/test_exactness.py::" + (
    "test_a_face_detector_of_the_world_gives_the_whole_models_boxes"
)
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


@pytest.mark.benchmark
def test_a_test_that_is_skipped_fails_in_the_workflow(tmp_path: Path) -> None:
    steps = yaml.safe_load(WORKFLOW.read_text())["jobs"]["check"]["steps"]
    (checks,) = (step["run"] for step in steps if ".ci/run" in step.get("run", ""))
    assert "TESTS_SKIP_NOTHING=1" in shlex.split(checks)
    lacks = {"TESTS_SKIP_NOTHING": "1", "SWARM_TEST_MODELS": str(tmp_path)}
    command = ["pytest", "-n", "0", f"--basetemp={tmp_path / 'inner'}", NEEDS_A_MODEL]
    run = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env=os.environ | lacks,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 1
    assert "nothing may be skipped here" in run.stdout


def test_the_workflow_calls_what_judges_a_figure() -> None:
    assert "swarm bench regression" in (ROOT / ".ci" / "run").read_text()
