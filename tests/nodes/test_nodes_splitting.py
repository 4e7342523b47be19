"""A local mesh's model is split by a process of its own, which ends."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest
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
