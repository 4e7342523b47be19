"""`swarm model quantize` of a language model: what it cost is measured on a text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nodes.cli.main import app
from shards.language.folder import read_folder


def test_a_language_model_is_written_with_its_texts_and_what_it_cost(tmp_path: Path) -> None:
    text = tmp_path / "held.txt"
    text.write_text("Return the name of the file, or None where there is no such file.\n" * 3)
    small = tmp_path / "small"
    command = ["model", "quantize", "toy", "-o", str(small), "--text", str(text)]
    done = CliRunner().invoke(app, [*command, "--rows", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["written"] == str(small)
    assert report["bytes_after"] < 0.5 * report["bytes_before"]
    assert abs(report["cross_entropy_after"] - report["cross_entropy_before"]) < 0.01
    _, hints = read_folder(small)
    assert hints.quantized is not None
    assert hints.quantized.cross_entropy_after == report["cross_entropy_after"]
    assert hints.end_tokens == (0,)
    again = CliRunner().invoke(app, [*command, "--rows"])
    assert again.exit_code != 0
    assert "exists" in again.output


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["toy", "--rows"], "--text FILE"),
        (["toy", "--rows", "--text", "absent.txt"], "No such file"),
        (["toy", "--rows", "--fp16", "--text", "held.txt"], "one of --rows and --weights-only"),
        (["toy", "--text", "held.txt"], "one of --rows and --weights-only"),
        (["absent.onnx", "--rows", "--text", __file__], "is no folder"),
    ],
)
def test_a_wrong_request_for_a_language_model_writes_nothing(
    tmp_path: Path, flags: list[str], says: str
) -> None:
    done = CliRunner().invoke(app, ["model", "quantize", *flags, "-o", str(tmp_path / "small")])
    assert done.exit_code != 0
    assert says in done.output
    assert not list(tmp_path.iterdir())
