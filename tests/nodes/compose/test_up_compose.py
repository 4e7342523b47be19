"""`swarm up --compose` refuses what it cannot start, before it splits anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from nodes.cli.main import app

CASCADE = """
[inputs]
image = { datatype = "FP32", shape = [1, 1, 8, 8] }
[[part]]
name = "one"
model = "small"
inputs = { image = "image" }
[[part]]
name = "two"
model = "large@1"
inputs = { image = "image" }
[[part]]
name = "mean"
mean = ["one.logits", "two.logits"]
[outputs]
logits = "mean.mean"
"""
SMALL, BOTH = ["--model", "small.onnx"], ["--model", "small.onnx", "--model", "large.onnx"]
REFUSED = {  # words after `up`, and what the refusal names
    "a model is missing": ([*SMALL, "--compose", "both.toml"], "give --model large.onnx"),
    "no file": ([*BOTH, "--compose", "none.toml"], "none.toml is no file"),
    "no composition's folder": ([*BOTH, "--compose", "."], "no manifest.json"),
    "a name twice": ([*SMALL, "--model", "both.onnx", "--compose", "both.toml"], "'both' already"),
    "one file twice": ([*SMALL, *SMALL], "the name 'small' already"),
    "a name for several": ([*BOTH, "--name", "x"], "--name is for one model"),
    "cuts for several": ([*BOTH, "--cuts", "x"], "--cuts is for one model"),
    "a plan for several": ([*BOTH, "--auto", "2"], "give one --model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_started_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    words, expected = REFUSED[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "both.toml").write_text(CASCADE, encoding="utf-8")
    told = CliRunner().invoke(app, ["up", *words])
    assert told.exit_code == 1
    assert expected in " ".join(told.stderr.split())
