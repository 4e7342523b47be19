"""A local mesh's model is split by a process of its own, which ends."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.commands import said
from support.waiting import eventually

from nodes.up.splitting import split_into
from shards.manifest import read_dir
from shards.zoo import digits_model
from swarm.errors import InvalidArgument

pytestmark = pytest.mark.processes


def children() -> set[int]:
    """Ids of this process's children; other tests' meshes may be among them."""
    return {child.pid for child in psutil.Process(os.getpid()).children()}


@pytest.fixture
def model(tmp_path: Path) -> str:
    file = tmp_path / "digits.onnx"
    file.write_bytes(digits_model())
    return str(file)


async def test_the_shards_lie_in_the_folder_and_no_process_is_left(
    model: str, tmp_path: Path
) -> None:
    before = children()
    folder = tmp_path / "split"
    await split_into(folder, model, ["--stages", "2", "--name", "d", "--version", "7"])
    manifest, fetch = read_dir(folder)
    assert (manifest.model, manifest.version, manifest.stages) == ("d", "7", 2)
    assert all(fetch(name) for name in manifest.files())
    assert children() <= before


async def test_a_split_that_says_more_than_a_pipe_holds_ends(tmp_path: Path) -> None:
    pytest.importorskip("shards.cameras", reason="the option --task is a feature's")
    count = 5000
    weight = np.random.default_rng(0).standard_normal((3, count)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["x"], ["mean"], axes=[2, 3], keepdims=0),
            helper.make_node("MatMul", ["mean", "weight"], ["logits"]),
            helper.make_node("Softmax", ["logits"], ["scores"], axis=1),
        ],
        "classes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 32, 32])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", count])],
        [numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    file, labels = tmp_path / "classes.onnx", tmp_path / "labels.txt"
    file.write_bytes(model.SerializeToString())
    labels.write_text("".join(f"a class with the number {n}\n" for n in range(count)))
    folder = tmp_path / "split"
    task = ["--task", "classify", "--labels", str(labels)]
    async with asyncio.timeout(60):
        await split_into(folder, str(file), ["--stages", "1", "--name", "c", *task])
    manifest, _ = read_dir(folder)
    assert len(manifest.to_json()) > 1 << 16


def wide_features() -> bytes:
    """Four convolutions, whose features take 5 ms at 1 Gbit/s, and a mean."""
    rng = np.random.default_rng(0)
    weights = {f"w{n}": rng.standard_normal((16, 16, 3, 3)).astype(np.float32) for n in range(4)}
    names = ["x", "a", "b", "c", "d"]
    nodes = [
        helper.make_node("Conv", [names[n], f"w{n}"], [names[n + 1]], pads=[1, 1, 1, 1])
        for n in range(4)
    ]
    nodes += [
        helper.make_node("GlobalAveragePool", ["d"], ["mean"]),
        helper.make_node("Softmax", ["mean"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 96, 96])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 1, 1])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def test_on_one_host_wide_features_do_not_keep_stages_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(graph: object, types: object, bounds: Sequence[int], *_: Any, **more: Any) -> Any:
        """A convolution takes 0.7 ms, the others nothing. What is measured, a busy machine says."""
        return [0.7 * (min(end, 4) - min(begin, 4)) for begin, end in pairwise(bounds)]

    monkeypatch.setattr("shards.split.plan.time_segments", timed)
    monkeypatch.setattr("shards.split.plan.time_stages", timed)
    file = tmp_path / "wide.onnx"
    file.write_bytes(wide_features())
    sent = {}
    for name, flags in (("apart", []), ("one-host", ["--one-host"])):
        folder = str(tmp_path / name)
        done = said("model", "split", str(file), "-o", folder, "--stages", "2", *flags)
        assert done.code == 0, done.stderr
        manifest, _ = read_dir(folder)
        sent[name] = [spec.name for spec in manifest.shards[0].sends]
    assert sent["apart"] == ["mean"]
    assert sent["one-host"][0] in "abc"


async def test_the_error_of_the_split_is_raised_here_and_not_printed_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "no-model.onnx"
    file.write_bytes(b"no model at all")
    with pytest.raises(InvalidArgument, match="not an ONNX model"):
        await split_into(tmp_path / "split", str(file), [])
    assert capfd.readouterr().err == ""
    assert not (tmp_path / "split").exists()


async def test_a_split_that_is_cancelled_ends_its_process(model: str, tmp_path: Path) -> None:
    before = children()
    splitting = asyncio.create_task(split_into(tmp_path / "split", model, []))
    await eventually(lambda: not children() <= before)
    splitting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await splitting
    assert children() <= before
    assert not (tmp_path / "split").exists()
