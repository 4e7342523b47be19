"""Models and compositions for tests: digits, and a second model whose versions differ."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from support.commands import said
from support.meshes import LOOPBACK

from nodes.up.mesh import LocalMesh
from shards.manifest import Manifest, read_dir
from shards.split.split import SplitResult, split
from shards.zoo import digits_model

IMAGE = """
[inputs]
image = { datatype = "FP32", shape = [-1, 1, 8, 8] }
"""
SUM = """
[[part]]
name = "small"
model = "second@{version}"
inputs = {{ image = "image" }}

[[part]]
name = "large"
model = "digits"
inputs = {{ image = "image" }}

[[part]]
name = "both"
mean = ["small.logits", "large.logits"]

[outputs]
logits = "both.mean"
"""


@cache
def second(version: str = "1", name: str = "second") -> SplitResult:
    """The digits model in one stage; version N gives N times its logits."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load_from_string(digits_model())
    for tensor in model.graph.initializer:
        if tensor.name.startswith("logits."):
            array = numpy_helper.to_array(tensor) * np.float32(version)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    made = model.SerializeToString()
    return split(made, name=name, version=version, stages=1, bandwidth=LOOPBACK)


def summed(version: str) -> str:
    """The mean of digits and of a version of the second model: (1 + N) / 2 times the logits."""
    return IMAGE + SUM.format(version=version)


async def built(
    local: LocalMesh,
    folder: Path,
    text: str,
    name: str,
    version: str = "1",
    more: Sequence[str] = (),
) -> tuple[Manifest, dict[str, bytes]]:
    """A composition as `swarm compose build` makes it against this mesh. more: words for that."""
    where = ("--nats", local.url, "--mesh", local.name, *more)
    return await asyncio.to_thread(_built, where, folder, text, name, version)


def _built(
    where: Sequence[str], folder: Path, text: str, name: str, version: str
) -> tuple[Manifest, dict[str, bytes]]:
    file, out = folder / f"{name}-{version}.toml", folder / f"{name}-{version}"
    file.write_text(text, encoding="utf-8")
    named = ("--name", name, "--version", version)
    told = said("compose", "build", str(file), "-o", str(out), *named, *where)
    assert told.code == 0, told.stderr
    manifest, fetch = read_dir(out)
    return manifest, {file: fetch(file) for file in manifest.files()}
