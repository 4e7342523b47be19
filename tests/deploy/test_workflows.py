"""The workflows of a user's CI fit their schema, and run what judges."""

from __future__ import annotations

import os
import shlex
import shutil
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
    assert "TESTS_SKIP_NOTHING=1" in shlex.split(steps("check")[-1])
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


def steps(job: str) -> list[str]:
    """What a job of the workflow runs, in order."""
    found = yaml.safe_load(WORKFLOW.read_text())["jobs"][job]["steps"]
    return [step["run"] for step in found if "run" in step]


def played(script: str, folder: Path, failing: str = "") -> tuple[int, list[str]]:
    """The exit code of a script of `.ci`, and what it calls of `uv`, none of which does anything.
    failing: the call that fails."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    calls = folder / "calls"
    calls.write_text("")
    for name in ("uv", "apt-get", "promtool", "amtool", "chromium", "bwrap", "ip"):
        said = f'echo "$*" >> {calls}; [ "$*" != "{failing}" ]' if name == "uv" else ":"
        (programs / name).write_text(f"#!/bin/sh\n{said}\n")
        (programs / name).chmod(0o755)
    copied = folder / ".ci" / script
    copied.parent.mkdir(exist_ok=True)
    shutil.copy(ROOT / ".ci" / script, copied)
    environment = os.environ | {"PATH": f"{programs}:/usr/bin:/bin"}
    done = subprocess.run([copied], env=environment, capture_output=True, timeout=60, check=False)
    # What compiles the tests beside the types judges nothing, and comes when it comes.
    called = calls.read_text().splitlines()
    return done.returncode, [call for call in called if "--collect-only" not in call]


JUDGES = (
    "run ruff check .",
    "run ruff format --check .",
    "run mypy",
    "run lint-imports",
    "run pytest",
    "run pytest -m benchmark",
    "run pytest -m house --dist load",
    "run pytest -m timing -n 0",
    "run swarm bench regression",
)


def test_the_workflow_runs_all_that_judges_on_each_push_and_pull_request(tmp_path: Path) -> None:
    on = yaml.safe_load(WORKFLOW.read_text())[True]  # YAML 1.1 reads the word `on` so
    assert {"push", "pull_request"} <= set(on)
    assert shlex.split(steps("check")[-1])[-1] == ".ci/run"
    code, calls = played("run", tmp_path)
    assert code == 0
    assert set(JUDGES) <= set(calls)
    assert [call for call in calls if call.startswith("run swarm bench hostile")]
    assert shlex.split(steps("stories")[-1])[-1] == ".ci/weekly"
    assert "run pytest -m weekly" in played("weekly", tmp_path)[1]


@pytest.mark.parametrize("failing", JUDGES)
def test_whatever_fails_fails_the_workflow(failing: str, tmp_path: Path) -> None:
    code, calls = played("run", tmp_path, failing)
    assert code != 0
    assert calls[-1] == failing
