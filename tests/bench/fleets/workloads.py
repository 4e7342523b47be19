"""Models for loads, with inputs and what the whole model answers to them."""

from __future__ import annotations

import numpy as np
from support.meshes import whole
from zoo.builders import mobilenet
from zoo.graph_writer import GraphWriter

from bench.asked import Workload
from shards.split.split import split

GOOD = 100.0  # Mbit/s of a link
DEEP = 30  # layers of each stage behind such a link: 7 to 25 ms, and 50 KB between stages
INPUTS = 8


def deep(stages: int) -> bytes:
    """Stages that compute longer than their features are on a link of `GOOD` Mbit/s. Each layer
    turns the channels' vector and keeps its length, so errors and values neither grow nor fade."""
    writer = GraphWriter("deep", batch=1)
    tensor = writer.input("x", [64, 14, 14])
    kernel = np.zeros((64, 64, 5, 5), np.float32)
    kernel[:, :, 2, 2] = np.linalg.qr(writer.random.standard_normal((64, 64)))[0]
    weight = writer.constant("w", kernel)
    for stage in range(1, stages + 1):
        for layer in range(1, DEEP + 1):
            name = f"stage{stage}" if layer == DEEP else f"t{stage}.{layer}"
            tensor = writer.add("Conv", [tensor, weight], name, pads=[2] * 4)
    writer.output(tensor, [64, 14, 14])
    return writer.to_bytes()


def workload_of(stages: int, size: int = 64, is_deep: bool = False) -> Workload:
    """A MobileNet for small pictures, or a deep model; inputs with the whole model's outputs.
    size: pixels of a picture's height and width."""
    if is_deep:
        data = deep(stages)
        result = split(data, name="deep", cuts=[f"stage{n}" for n in range(1, stages)])
    else:
        data = mobilenet(size=size)
        result = split(data, name="mobilenet", stages=stages)
    spec = result.manifest.inputs[0]
    rng = np.random.default_rng(1)
    shape = [max(1, d) for d in spec.shape]
    inputs = [{spec.name: rng.random(shape, dtype=np.float32)} for _ in range(INPUTS)]
    return Workload(result, list(inputs), list(whole(data, inputs)))
