"""`swarm model quantize`: writes what pays, leaves the rest, and says so."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from nodes.cli.main import app
from shards.zoo import digits_heldout, digits_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "digits.onnx").write_bytes(digits_model())
    np.savez(tmp_path / "data.npz", image=digits_heldout()[0][:8])
    return tmp_path / "digits.onnx"


def quantize(model: Path, *flags: str) -> Result:
    output = str(model.parent / "small.onnx")
    return CliRunner().invoke(app, ["model", "quantize", str(model), "-o", output, *flags])


def test_a_model_that_pays_is_written_and_the_report_is_one_document(model: Path) -> None:
    done = quantize(model, "--fp16", "--force", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["written"] == str(model.parent / "small.onnx")
    assert (model.parent / "small.onnx").stat().st_size == report["bytes_after"]
    assert report["bytes_after"] < report["bytes_before"]


def test_a_model_that_does_not_gain_is_left_as_it_is_unless_forced(model: Path) -> None:
    data = str(model.parent / "data.npz")
    strict = ["--calibrate", data, "--ranges", "min-max", "--keep-accuracy", data, "--max-drop=0"]
    done = quantize(model, *strict)
    assert done.exit_code == 1
    assert "no gain" in done.stdout
    assert "--force" in done.stderr
    assert {file.name for file in model.parent.iterdir()} == {"digits.onnx", "data.npz"}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--int8", "--fp16"], "exclude each other"),
        (["--ranges", "guess"], "min-max, entropy, percentile"),
        (["--weights-only", "--bits", "3"], "4 or 8"),
        (["--int8"], "--calibrate"),
        (["--int8", "--calibrate", "absent.npz"], "no such file"),
    ],
)
def test_a_wrong_request_is_one_line_and_writes_nothing(
    model: Path, flags: list[str], says: str
) -> None:
    done = quantize(model, *flags)
    assert done.exit_code == 1
    assert says in done.stderr
    assert not (model.parent / "small.onnx").exists()


def test_a_file_that_exists_is_never_overwritten(model: Path) -> None:
    (model.parent / "small.onnx").write_text("mine")
    done = quantize(model, "--fp16")
    assert done.exit_code == 1
    assert "exists" in done.stderr
    assert (model.parent / "small.onnx").read_text() == "mine"


def test_ctrl_c_ends_long_work_soon_and_writes_nothing(model: Path) -> None:
    np.savez(model.parent / "long.npz", image=np.tile(digits_heldout()[0], (40, 1, 1, 1)))
    files = {file.name for file in model.parent.iterdir()}
    command = [sys.executable, "-m", "nodes.cli.main", "model", "quantize", str(model)]
    command += ["-o", str(model.parent / "small.onnx")]
    command += ["--calibrate", str(model.parent / "long.npz")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("calibrating" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert {file.name for file in model.parent.iterdir()} == files
