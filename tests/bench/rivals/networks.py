"""The networks of `swarm bench peers`: two small convolutional ones, and ResNet-50.

The small ones are written with ``onnx.helper``. Each is a list of stages; each stage is a list of
layers. The weights come from a seeded generator, so every machine builds the same files.
``build_workload`` also runs the *unsplit* network once, for the outputs that every contender's
answers are compared with. ResNet-50 is the zoo's, with random weights, cut by our splitter where
its measured stages take equally long.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bench.rivals.workload import WHOLE_FILE, write_split

Kind = Literal["tiny", "large", "resnet50"]
KINDS: tuple[Kind, ...] = ("tiny", "large", "resnet50")
RESNET50_IN_FLIGHT = 8
RESNET50_STAGES = 3
LOOPBACK_BANDWIDTH = 1e6
"""Bytes a millisecond: compute decides the cuts, not the link."""


SEED = 7  # of the weights and the input


@dataclass(frozen=True)
class Conv:
    """A 3x3 convolution with bias and ReLU: ``[1, c, h, w]`` to ``[1, channels, h/s, w/s]``."""

    channels: int
    stride: int = 1


@dataclass(frozen=True)
class Head:
    """Global average pool and one linear layer: ``[1, c, h, w]`` to ``[1, classes]``."""

    classes: int = 10


@dataclass(frozen=True)
class Network:
    """Input shape, the layers of each stage, and the load that suits it."""

    input_shape: tuple[int, int, int, int]
    stages: tuple[tuple[Conv | Head, ...], ...]
    in_flight: int


NETWORKS: dict[str, Network] = {
    # Features between stages: 16 x 8 x 8 FP32 = 4 KiB.
    "tiny": Network((1, 3, 16, 16), ((Conv(16, 2),), (Conv(16),), (Conv(32, 2), Head())), 16),
    # Features between stages: 32 x 80 x 80 FP32 = 0.8 MB, then 64 x 80 x 80 FP32 = 1.6 MB.
    "large": Network(
        (1, 3, 160, 160),
        ((Conv(32, 2), Conv(32), Conv(32)), (Conv(64), Conv(64)), (Conv(64), Conv(64, 2), Head())),
        4,
    ),
}


class _Graph:
    """Collects the nodes and weights of consecutive layers."""

    def __init__(self, shape: tuple[int, ...], name: str) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.shape = shape
        self.name = name

    def add(self, layer: Conv | Head, prefix: str, weights: dict[str, np.ndarray]) -> None:
        """Append one layer; its arrays are ``prefix.weight`` and ``prefix.bias`` of ``weights``."""
        from onnx import helper, numpy_helper

        for suffix in ("weight", "bias"):
            name = f"{prefix}.{suffix}"
            self.weights.append(numpy_helper.from_array(weights[name], name))
        parameters = [f"{prefix}.weight", f"{prefix}.bias"]
        source, target = self.name, f"{prefix}.out"
        batch, _, height, width = (*self.shape, 1, 1)[:4]
        if isinstance(layer, Conv):
            self.nodes += [
                helper.make_node(
                    "Conv",
                    [source, *parameters],
                    [f"{prefix}.conv"],
                    kernel_shape=[3, 3],
                    pads=[1, 1, 1, 1],
                    strides=[layer.stride] * 2,
                ),
                helper.make_node("Relu", [f"{prefix}.conv"], [target]),
            ]
            self.shape = (batch, layer.channels, height // layer.stride, width // layer.stride)
        else:
            self.nodes += [
                helper.make_node("GlobalAveragePool", [source], [f"{prefix}.pool"]),
                helper.make_node("Flatten", [f"{prefix}.pool"], [f"{prefix}.flat"]),
                helper.make_node("Gemm", [f"{prefix}.flat", *parameters], [target]),
            ]
            self.shape = (batch, layer.classes)
        self.name = target

    def model(self, source: str, source_shape: tuple[int, ...]) -> Any:
        """The collected layers as a checked ``ModelProto``."""
        import onnx
        from onnx import TensorProto, helper

        graph = helper.make_graph(
            self.nodes,
            "stage",
            [helper.make_tensor_value_info(source, TensorProto.FLOAT, source_shape)],
            [helper.make_tensor_value_info(self.name, TensorProto.FLOAT, self.shape)],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model)
        return model


def build_workload(directory: Path, kind: Kind) -> None:
    """Write a workload directory, see ``bench.rivals.workload``.

    ``expected.npz`` comes from the unsplit network: no chain of stages computed it.
    """
    if kind == "resnet50":
        _build_resnet50(directory)
        return
    import onnx
    import onnxruntime

    network = NETWORKS[kind]
    random = np.random.default_rng(SEED)
    weights = _weights(network, random)
    directory.mkdir(parents=True, exist_ok=True)
    whole = _Graph(network.input_shape, "image")
    name: str = "image"
    shape: tuple[int, ...] = network.input_shape
    stages: list[dict[str, Any]] = []
    for number, layers in enumerate(network.stages, 1):
        stage = _Graph(shape, name)
        for index, layer in enumerate(layers):
            stage.add(layer, f"s{number}.l{index}", weights)
            whole.add(layer, f"s{number}.l{index}", weights)
        onnx.save(stage.model(name, shape), str(directory / f"stage-{number}.onnx"))
        stages.append({"inputs": [_spec(name, shape)], "outputs": [_spec(stage.name, stage.shape)]})
        name, shape = stage.name, stage.shape
    image = random.standard_normal(network.input_shape, dtype=np.float32)
    model = whole.model("image", network.input_shape).SerializeToString()
    (directory / WHOLE_FILE).write_bytes(model)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"image": image})
    np.savez(directory / "input.npz", image=image)
    np.savez(directory / "expected.npz", **{name: logits})
    meta = {"v": 1, "kind": kind, "in_flight": network.in_flight, "stages": stages}
    (directory / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")


def _build_resnet50(directory: Path) -> None:
    from zoo.builders import resnet50

    from shards.runtimes.ort import make_session
    from shards.split.split import split

    model = resnet50(224, 1.0)
    image = np.random.default_rng(SEED).standard_normal((1, 3, 224, 224), dtype=np.float32)
    inputs = {"image": image}
    result = split(
        model,
        name="resnet50",
        stages=RESNET50_STAGES,
        example=inputs,
        bandwidth=LOOPBACK_BANDWIDTH,
    )
    (logits,) = make_session(model).run(["logits"], inputs)
    write_split(directory, model, result, inputs, {"logits": logits}, RESNET50_IN_FLIGHT)


def _spec(name: str, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"name": name, "dtype": "float32", "shape": list(shape)}


def _weights(network: Network, random: np.random.Generator) -> dict[str, np.ndarray]:
    """He-initialised weights by layer name, FP32."""
    weights: dict[str, np.ndarray] = {}
    channels = network.input_shape[1]
    for number, layers in enumerate(network.stages, 1):
        for index, layer in enumerate(layers):
            prefix = f"s{number}.l{index}"
            if isinstance(layer, Conv):
                shape: tuple[int, ...] = (layer.channels, channels, 3, 3)
                out, fan_in = layer.channels, channels * 9
            else:
                # Gemm computes A x B: B is [channels, classes].
                shape, out, fan_in = (channels, layer.classes), layer.classes, channels
            scale = np.float32(np.sqrt(2.0 / fan_in))
            weights[f"{prefix}.weight"] = scale * random.standard_normal(shape, dtype=np.float32)
            weights[f"{prefix}.bias"] = np.float32(0.1) * random.standard_normal(
                out, dtype=np.float32
            )
            channels = out
    return weights
