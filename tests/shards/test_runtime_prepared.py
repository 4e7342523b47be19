"""Prepared models: optimised once for a machine, mapped by all of its processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from zoo.builders import resnet50

from shards.errors import ArtifactError, ModelError
from shards.manifest import Manifest, sha256, write_dir
from shards.runtimes.load import load_lighter, load_stage
from shards.runtimes.prepared import ABOUT, EXPECTED, MODEL, WEIGHTS
from shards.runtimes.synthetic import random_feeds
from shards.split.split import SplitResult, split
from shards.zoo import digits_lite_model, digits_model

SPLIT = split(digits_model(), name="digits", stages=2, profile=False, lighter=digits_lite_model())


class Folders:
    """Folders without locks or hashes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made_now = 0

    def made(self, key: str, make: Callable[[Path], None]) -> Path:
        path = self.folder / key
        if not path.exists():
            self.made_now += 1
            path.mkdir()
            make(path)
        return path


class Files:
    """The artifacts of a split, as files; counts how often each is asked for."""

    def __init__(self, folder: Path, result: SplitResult = SPLIT) -> None:
        self.folder = folder / "artifacts"
        self.asked: list[str] = []
        write_dir(self.folder, result.manifest, result.files)

    def __call__(self, name: str) -> Path:
        self.asked.append(name)
        return self.folder / name


@pytest.mark.parametrize("stage", [1, 2])
def test_a_prepared_stage_computes_what_the_stage_in_memory_computes(
    stage: int, tmp_path: Path
) -> None:
    folders, files = Folders(tmp_path), Files(tmp_path)
    in_memory = load_stage(SPLIT.manifest, stage, SPLIT.files.__getitem__)
    feeds = random_feeds(in_memory.shard.receives, seed=5)
    for _ in range(2):  # prepared now, and found prepared
        mapped = load_stage(SPLIT.manifest, stage, files, folders=folders)
        for name, array in in_memory.run(feeds).items():
            np.testing.assert_array_equal(mapped.run(feeds)[name], array)
        assert mapped.compute_ms > 0
    assert folders.made_now == 1
    assert len(files.asked) == 1  # no file is needed where the stage is prepared


def test_a_lighter_model_is_prepared_too(tmp_path: Path) -> None:
    folders, files = Folders(tmp_path), Files(tmp_path)
    for _ in range(2):
        lighter = load_lighter(SPLIT.manifest, files, folders=folders)
        assert lighter is not None
    assert folders.made_now == 1


def test_a_file_that_is_not_the_manifests_is_not_prepared(tmp_path: Path) -> None:
    folders, files = Folders(tmp_path), Files(tmp_path)
    (files.folder / "stage-1.onnx").write_bytes(SPLIT.files["stage-1.onnx"] + b"\0")
    with pytest.raises(ArtifactError, match=r"stage-1\.onnx has SHA-256"):
        load_stage(SPLIT.manifest, 1, files, folders=folders)


def test_a_stage_that_cannot_be_prepared_is_loaded_into_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class FullDisk(Folders):
        def made(self, key: str, make: Callable[[Path], None]) -> Path:
            raise OSError(28, "No space left on device")

    stage = load_stage(SPLIT.manifest, 1, SPLIT.files.__getitem__, folders=FullDisk(tmp_path))
    assert stage.run(random_feeds(stage.shard.receives))
    assert "No space left" in caplog.text


@pytest.mark.parametrize("name", [MODEL, ABOUT, EXPECTED])
def test_prepared_files_that_cannot_be_read_cost_memory_and_no_stage(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders, files = Folders(tmp_path), Files(tmp_path)
    load_stage(SPLIT.manifest, 1, files, folders=folders)
    (file,) = tmp_path.glob(f"*/{name}")
    file.write_bytes(b"{")
    stage = load_stage(SPLIT.manifest, 1, files, folders=folders)
    assert stage.run(random_feeds(stage.shard.receives))
    assert "into memory" in caplog.text


def test_prepared_weights_that_give_another_result_are_not_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders, files = Folders(tmp_path), Files(tmp_path)
    load_stage(SPLIT.manifest, 2, files, folders=folders)
    (weights,) = tmp_path.glob(f"*/{WEIGHTS}")
    weights.write_bytes(bytes(weights.stat().st_size))
    stage = load_stage(SPLIT.manifest, 2, files, folders=folders)
    assert "is off by" in caplog.text
    feeds = random_feeds(stage.shard.receives)
    right = load_stage(SPLIT.manifest, 2, SPLIT.files.__getitem__).run(feeds)
    np.testing.assert_array_equal(stage.run(feeds)["logits"], right["logits"])


def test_another_processor_prepares_files_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, files = Folders(tmp_path), Files(tmp_path)
    load_stage(SPLIT.manifest, 1, files, folders=folders)
    other = tmp_path / "cpuinfo"
    other.write_text("processor: 0\nmodel name: another\nflags: few\n\nprocessor: 1\n")
    monkeypatch.setattr("shards.runtimes.prepared.CPU_INFO", other)
    load_stage(SPLIT.manifest, 1, files, folders=folders)
    assert folders.made_now == 2


def test_a_model_that_the_runtime_refuses_is_refused_and_leaves_no_prepared_files(
    tmp_path: Path,
) -> None:
    document = json.loads(SPLIT.manifest.to_json())
    document["shards"][0]["sha256"] = sha256(b"no model")
    manifest = Manifest.from_json(json.dumps(document).encode())
    with pytest.raises(ModelError, match="refuses"):
        load_stage(manifest, 1, lambda name: b"no model", folders=Folders(tmp_path))


LOAD = """
import json, sys, psutil
from pathlib import Path
from shards.manifest import read_dir
from shards.runtimes.load import load_stage
from shards.runtimes.synthetic import random_feeds

class Folders:
    def made(self, key, make):
        path = Path(sys.argv[1]) / key
        if not path.exists():
            path.mkdir()
            make(path)
        return path

manifest, fetch = read_dir(sys.argv[1] + "/artifacts")
folders = Folders() if sys.argv[2] == "mapped" else None
stage = load_stage(manifest, 1, fetch, folders=folders)
stage.run(random_feeds(stage.shard.receives, manifest.extra["examples"]))
maps = psutil.Process().memory_maps()
print(json.dumps({
    "weights": sum(m.rss for m in maps if m.path.endswith("weights.bin")),
    "private": sum(m.rss for m in maps if not m.path.startswith("/")),
}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/PID/smaps")
def test_weights_are_mapped_and_not_copied(tmp_path: Path) -> None:
    """In processes of their own: the memory of this one is everybody's."""
    result = split(resnet50(64, 0.5), name="r", stages=1, profile=False)
    Files(tmp_path, result)
    found = []
    for way in ("mapped", "mapped", "in memory"):  # prepared now, found prepared, neither
        done = subprocess.run(
            [sys.executable, "-c", LOAD, str(tmp_path), way], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    weights = result.manifest.shards[0].bytes
    assert [each["weights"] > 0.8 * weights for each in found] == [True, True, False]
    assert found[2]["private"] - found[1]["private"] > 0.8 * weights
