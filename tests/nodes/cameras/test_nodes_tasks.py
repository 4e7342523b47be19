"""A picture in, boxes out: split with a task, served over stages, asked by anyone."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from skimage import data
from support.meshes import mesh_of
from typer.testing import CliRunner, Result

import swarm
from nodes.cli.main import app
from shards.cameras import Detections, Task, document
from shards.cameras.wish import Wish
from shards.manifest import CodecError, read_dir
from shards.split.split import split
from shards.zoo import digits_model

sys.path.append(str(Path(__file__).parents[2] / "shards"))
sys.path.append(str(Path(__file__).parents[2] / "shards" / "cameras"))
from detector_graphs import ssd, yolo
from shard_graphs import chained

cv2 = pytest.importorskip("cv2", reason="opencv-python-headless is not installed")
IMAGE = data.coffee()
LABELS = ("cup", "spoon", "table", "light", "wood")
WISH = Wish("detect", decode="ssd", threshold=0.2, labels=LABELS)
MODEL = ssd((64, 48), 300, 5)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "coffee.png"
    cv2.imwrite(str(path), np.ascontiguousarray(IMAGE[:, :, ::-1]))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(MODEL)
    return path


# --- split, inspect -------------------------------------------------------------------------


def test_a_task_is_told_at_the_split_and_shown_by_inspect(file: Path, tmp_path: Path) -> None:
    names = tmp_path / "labels.txt"
    names.write_text("\n".join(LABELS) + "\n\n")
    folder = tmp_path / "split"
    asked = ["--task", "detect", "--labels", str(names), "--decode", "ssd", "--threshold", "0.2"]
    done = run("model", "split", str(file), "-o", str(folder), "--stages", "2", *asked)
    assert done.exit_code == 0, done.output
    assert "ssd, as --decode says" in done.stderr
    assert "--normalise says otherwise" in done.stderr
    manifest, _ = read_dir(folder)
    task = Task.of(manifest.parts.get("task"))
    assert task.labels == LABELS
    assert task.baked
    shown = run("model", "inspect", str(folder))
    assert "task: detect, its arithmetic in the graph" in shown.stdout
    assert "scores above 0.2" in shown.stdout
    assert "cup, spoon" in shown.stdout
    assert (
        json.loads(run("model", "inspect", str(folder), "--json").stdout)["task"] == task.to_doc()
    )


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--task", "detect"], "--decode says it: yolo-v8"),
        (["--task", "juggle"], "detect, classify, segment, embed"),
        (["--task", "detect", "--decode", "ssd", "--labels", "a,b"], "2 labels for 5 classes"),
        (["--task", "detect", "--decode", "ssd", "--size", "big"], "WIDTHxHEIGHT"),
        (["--task", "detect", "--decode", "ssd", "--threshold", "7"], "threshold"),
        (["--labels", "a,b"], "--task"),
    ],
)
def test_a_task_that_is_not_clear_is_one_line_with_the_choices(
    file: Path, tmp_path: Path, flags: list[str], says: str
) -> None:
    done = run("model", "split", str(file), "-o", str(tmp_path / "split"), *flags)
    assert done.exit_code == 1
    assert says in done.stderr
    assert not (tmp_path / "split").exists()


# --- ask ------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.integration
async def test_stages_answer_boxes_also_none_also_in_a_lossy_codec_and_by_the_fallback(
    picture: Path,
) -> None:
    made = split(MODEL, name="net", stages=2, profile=False, addition=WISH)
    error = {"i8": CodecError(0.1, 0.1, 1)}
    manifest = replace(made.manifest, codecs=error, result_codecs=error)
    result = replace(made, manifest=manifest)
    task = Task.of(manifest.parts.get("task"))
    black = np.zeros((50, 50, 3), np.uint8)
    alone = {"bright": task.read(chained(made, task.prepare(IMAGE), "all"), IMAGE.shape)}
    alone["black"] = task.read(chained(made, task.prepare(black), "all"), black.shape)
    async with mesh_of(result, "shard-1", "shard-2", "fallback") as local:
        async with swarm.connect(local.url, local.name) as mesh:
            told = Task.of((await mesh.model("net")).task)
            assert told == task
            for name, image in (("bright", IMAGE), ("black", black)):
                answer = await mesh.infer("net", told.prepare(image), budget=20)
                found = told.read(answer.outputs, image.shape)
                assert document(found) == document(alone[name])
        async with swarm.connect(local.url, local.name, codec="i8") as mesh:
            answer = await mesh.infer("net", told.prepare(IMAGE), budget=20)
            near = told.read(answer.outputs, IMAGE.shape)
            assert isinstance(near, Detections)
            assert len(near) > 0
        where = ["--nats", local.url, "--mesh", local.name, "--input", str(picture)]
        done = await asyncio.to_thread(run, "infer", "net", *where, "--json")
        assert done.exit_code == 0, done.output
        doc = json.loads(done.stdout)
        assert doc["detections"] == document(alone["bright"])["detections"]
        assert "outputs" not in doc
        told_to_people = await asyncio.to_thread(run, "infer", "net", *where)
        first = doc["detections"][0]
        assert f"{first['label']} {first['score']:.3f} at " in told_to_people.stdout
        shard = next(node for node in local.supervisor.nodes if node.role == "shard-2")
        assert shard.process is not None
        shard.process.send_signal(signal.SIGKILL)
        async with swarm.connect(local.url, local.name) as mesh:
            answer = await mesh.infer("net", told.prepare(IMAGE), budget=20)
            assert document(told.read(answer.outputs, IMAGE.shape)) == document(alone["bright"])


@pytest.mark.processes
@pytest.mark.integration
async def test_nothing_found_crosses_stages_as_no_rows_and_no_task_is_said(picture: Path) -> None:
    wish = Wish("detect", labels=("a", "b"), threshold=1.0)
    result = split(yolo("v8", 160, 2), name="none", stages=2, profile=False, addition=wish)
    async with mesh_of(result, "shard-1", "shard-2") as local:
        where = ["--nats", local.url, "--mesh", local.name]
        of_picture = [*where, "--input", str(picture)]
        done = await asyncio.to_thread(run, "infer", "none", *of_picture)
        assert done.exit_code == 0, done.output
        assert "nothing found" in done.stdout
        doc = json.loads(
            (await asyncio.to_thread(run, "infer", "none", *of_picture, "--json")).stdout
        )
        assert doc["detections"] == []
        raw = await asyncio.to_thread(run, "infer", "none", *where, "--random", "--json")
        shapes = {each["name"]: each["shape"] for each in json.loads(raw.stdout)["outputs"]}
        assert shapes == {"boxes": [0, 4], "scores": [0], "classes": [0]}
        plain = split(digits_model(), name="digits", stages=1, profile=False)
        async with swarm.connect(local.url, local.name) as mesh:
            await mesh.registry.push(plain.manifest.to_json(), plain.files)
        refused = await asyncio.to_thread(run, "infer", "digits", *of_picture)
        assert refused.exit_code == 1
        assert "--task detect|classify|segment|embed" in refused.stderr
