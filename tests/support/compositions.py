"""Compositions for tests: declared, built by the command, pushed, served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from nodes.up.mesh import LocalMesh, push
from shards.manifest import Manifest, read_dir
from shards.split.split import SplitResult, split
from shards.zoo import digits_lite_model, digits_model

from .commands import said
from .meshes import LOOPBACK, READY, mesh_of

# All kinds of parts, of two models of digits.
RICH = """
[inputs]
image = { datatype = "FP32", shape = [1, 1, 8, 8] }

[[part]]
name = "small"
model = "small"
inputs = { image = "image" }

[[part]]
name = "large"
model = "large"
inputs = { image = "image" }

[[part]]
name = "label"
choose = { by = "small.logits", measure = "margin", below = 4.0 }
then = "large"
otherwise = "small"

[[part]]
name = "views"
concat = ["image", "image", "image"]

[[part]]
name = "each"
map = "small"
inputs = { image = "views.joined" }
most = 4
optional = true

[[part]]
name = "one"
select = { of = "each.logits", stop = 1 }

[[part]]
name = "fast"
first = ["small", "large"]

[[part]]
name = "mean"
mean = ["label.logits", "fast.logits", "one.selected"]

[outputs]
logits = "label.logits"
mean = "mean.mean"
"""


def small() -> SplitResult:
    return split(digits_lite_model(), name="small", version="1", stages=1, bandwidth=LOOPBACK)


def large() -> SplitResult:
    return split(digits_model(), name="large", version="1", stages=2, bandwidth=LOOPBACK)


async def built(
    local: LocalMesh,
    folder: Path,
    text: str,
    name: str,
    version: str = "1",
    more: Sequence[str] = (),
) -> tuple[Manifest, dict[str, bytes]]:
    """A composition as `swarm compose build` makes it against this mesh. more: words for that."""
    file, out = folder / f"{name}-{version}.toml", folder / f"{name}-{version}"
    file.write_text(text, encoding="utf-8")
    told = await asyncio.to_thread(
        said,
        *("compose", "build", str(file), "-o", str(out), "--name", name, "--version", version),
        *("--nats", local.url, "--mesh", local.name, *more),
    )
    assert told.code == 0, told.stderr
    manifest, fetch = read_dir(out)
    return manifest, {each: fetch(each) for each in manifest.files()}


async def compose(
    local: LocalMesh, folder: Path, text: str, name: str = "cascade", version: str = "1"
) -> None:
    """Build a composition with the models of a mesh, by the command, and push it."""
    manifest, files = await built(local, folder, text, name, version)
    await push(local, manifest.to_json(), files)


@contextlib.asynccontextmanager
async def composed_mesh(
    folder: Path, text: str = RICH, flags: tuple[str, ...] = (), **settings: Any
) -> AsyncIterator[LocalMesh]:
    """A mesh of `small`, `large` in two stages, and the composition `cascade`. flags: of each
    node."""
    async with mesh_of(small(), "shard-1", flags=flags, **settings) as local:
        await push(local, (two := large()).manifest.to_json(), two.files)
        for role in ("shard-1", "shard-2"):
            local.start(role, "large", *flags)
        await local.ready(READY)
        await compose(local, folder, text)
        local.start("shard-1", "cascade", *flags)
        await local.ready(READY)
        yield local
