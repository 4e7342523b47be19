"""`swarm model plan … --devices`: from a file to a plan, and from the plan to a split model."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nodes.auto.commands.planning import of_manifest
from nodes.cli.main import app
from shards.manifest import read_dir
from shards.split.split import split
from shards.zoo import digits_model

sys.path.append(str(Path(__file__).parents[2] / "shards"))
from shard_graphs import floats, make, node, value

DEVICES = """
usual_link = { mbit_s = 1000, rtt_ms = 0.2 }
[[device]]
name = "small"
memory = "{small}"
[[device]]
name = "smaller"
speed = 0.5
memory = "{small}"
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "digits.onnx").write_bytes(digits_model())
    # Loading the whole model takes 8.9 MB: neither device has room for it.
    (tmp_path / "devices.toml").write_text(DEVICES.replace("{small}", "8.75 MB"))
    return tmp_path


def swarm(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def test_a_plan_for_devices_without_room_for_the_whole_is_split_by_it(files: Path) -> None:
    model, plan = f"{files}/digits.onnx", files / "plan.json"
    asked = ["--devices", f"{files}/devices.toml", "-o", str(plan)]
    made = swarm("model", "plan", model, *asked, "--json")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    assert document == json.loads(plan.read_text())
    assert document["exact"]
    used = {name for stage in document["stages"] for name in stage["devices"]}
    assert used == {"small", "smaller"}
    assert "MB needed" in document["others"][0]["why"]
    done = swarm("model", "split", model, "--plan", str(plan), "-o", f"{files}/made")
    assert done.exit_code == 0, done.stderr
    manifest, _ = read_dir(f"{files}/made")
    assert [s.name for s in manifest.shards[0].sends] == document["cuts"][0]


def test_a_plan_of_one_stage_is_split_by_it(files: Path) -> None:
    model, devices, plan = f"{files}/digits.onnx", files / "devices.toml", f"{files}/plan.json"
    devices.write_text(DEVICES.replace("{small}", "1 GB"))
    made = swarm("model", "plan", model, "--devices", str(devices), "-o", plan)
    assert f"next: swarm model split {model} --plan {plan} -o FOLDER" in made.stderr
    done = swarm("model", "split", model, "--plan", plan, "-o", f"{files}/made")
    assert done.exit_code == 0, done.stderr
    assert len(read_dir(f"{files}/made")[0].shards) == 1


def test_what_is_no_plan_and_what_cannot_be_planned_is_said(files: Path) -> None:
    model, devices = f"{files}/digits.onnx", files / "devices.toml"
    wrong = swarm("model", "split", model, "--plan", str(devices), "-o", f"{files}/made")
    assert wrong.exit_code == 1
    assert "is no plan" in wrong.stderr
    asked = swarm("model", "plan", model, "--devices", str(devices), "--objective", "best")
    assert "latency, throughput, devices" in asked.stderr
    devices.write_text(DEVICES.replace("{small}", "1 MB"))
    none = swarm("model", "plan", model, "--devices", str(devices))
    assert none.exit_code == 1
    assert "no room for the model" in none.stderr


def test_a_plan_is_drawn_where_there_is_matplotlib_and_else_it_says_how(files: Path) -> None:
    devices, picture = f"{files}/devices.toml", files / "plan.svg"
    words = ("model", "plan", f"{files}/digits.onnx", "--devices", devices, "--plot", str(picture))
    drawn = swarm(*words)
    if importlib.util.find_spec("matplotlib") is None:
        assert "pip install matplotlib" in drawn.stderr
    else:
        assert picture.read_text().startswith("<?xml")


def test_a_plan_counts_the_bytes_of_the_example() -> None:
    nodes = [node("Conv", ["x", "w"], ["c"], strides=[2, 2]), node("Relu", ["c"], ["r"])]
    nodes += [node("Conv", ["r", "v"], ["y"], strides=[2, 2])]
    stored = {"w": floats(4, 3, 3, 3), "v": floats(4, 4, 3, 3)}
    model = make(nodes, [value("x", ["n", 3, "h", "w"])], [value("y", None)], stored)
    manifest = split(
        model.SerializeToString(), name="net", version="1", stages=2, profile=False
    ).manifest
    assert of_manifest(manifest).segments[0].out >= 4 * 4 * 80 * 80
