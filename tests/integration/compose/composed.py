"""Models, compositions and load for tests: digits, a second model whose versions differ, an index
of the first digits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
from support.meshes import LOOPBACK, digits, whole

from shards.split.split import SplitResult, split
from shards.zoo import digits_lite_model, digits_model

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


CACHE_FIRST = """
[inputs]
image = { datatype = "FP32", shape = [1, 1, 8, 8] }

[[part]]
name = "embed"
model = "small"
inputs = { image = "image" }

[[part]]
name = "known"
nearest = { of = "embed.logits", index = "gallery" }

[[part]]
name = "stored"
concat = ["known.logits"]

[[part]]
name = "large"
model = "large"
inputs = { image = "image" }

[[part]]
name = "fresh"
concat = ["large.logits"]

[[part]]
name = "answer"
choose = { by = "known.distances", measure = "value", below = BOUND }
then = "stored"
otherwise = "fresh"

[outputs]
logits = "answer.joined"
label = "known.labels"
distance = "known.distances"
"""


def cache_first(bound: str) -> str:
    """What is nearer to an image than this in `gallery` answers with what is stored, else the large
    model does."""
    return CACHE_FIRST.replace("BOUND", bound)


def gallery(folder: Path, known: int) -> Path:
    """The first digits, with what the large model says of them. Their labels begin at 100."""
    images, logits = digits()
    rows = whole(digits_lite_model(), [{"image": image[None]} for image in images[:known]])
    vectors = np.concatenate([row["logits"] for row in rows])
    path = folder / "gallery.npz"
    np.savez(path, vectors=vectors, ids=np.arange(known) + 100, logits=logits[:known])
    return path


@asynccontextmanager
async def steady(
    one: Callable[[int], Coroutine[None, None, None]], pause: float
) -> AsyncIterator[None]:
    """one(n): asks for the n-th time; begun each `pause` seconds while the block lasts, and waited
    for behind it."""
    over = asyncio.Event()

    async def asks() -> None:
        async with asyncio.TaskGroup() as group:
            for number in count():
                if over.is_set():
                    return
                group.create_task(one(number))
                await asyncio.sleep(pause)  # the pace of the load

    asking = asyncio.create_task(asks())
    try:
        yield
    finally:
        over.set()
        await asking
