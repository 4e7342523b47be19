"""The demo's two networks, as layers to train and as ONNX graphs to ship.

`digits` is a small residual network whose feature maps are 4 KiB (16x8x8), 1 KiB (16x4x4) and
2 KiB (32x4x4) of FP32 per image: several places to cut it into stages, each worth one message.
`digits-lite` has 1/280 of the multiplications of `digits`, for an edge that must answer alone.
"""

from __future__ import annotations

import numpy as np

from zoo.graph_writer import GraphWriter
from zoo.numpy_layers import (
    BatchNormalization,
    Convolution,
    Dense,
    Flatten,
    GlobalAveragePool,
    MaxPool,
    Relu,
)
from zoo.numpy_network import Layer, Residual, Sequential

CLASSES = 10


def _normalized(rng: np.random.Generator, inputs: int, outputs: int) -> tuple[Layer, Layer]:
    return Convolution(rng, inputs, outputs), BatchNormalization(outputs)


def _residual(rng: np.random.Generator, channels: int) -> tuple[Layer, Layer]:
    """Conv-BN-Relu-Conv-BN added to its input, then Relu (arXiv 1512.03385, figure 2)."""
    first, second = _normalized(rng, channels, channels), _normalized(rng, channels, channels)
    return Residual(Sequential(*first, Relu(), *second)), Relu()


def digits_network(seed: int) -> Sequential:
    """[batch, 8, 8, 1] FP32 in 0..1 to logits [batch, 10]."""
    rng = np.random.default_rng(seed)
    return Sequential(
        *_normalized(rng, 1, 16),
        Relu(),
        *_residual(rng, 16),
        MaxPool(),
        *_normalized(rng, 16, 32),
        Relu(),
        *_residual(rng, 32),
        GlobalAveragePool(),
        Dense(rng, 32, CLASSES),
    )


def digits_lite_network(seed: int) -> Sequential:
    """[batch, 8, 8, 1] FP32 in 0..1 to logits [batch, 10]."""
    rng = np.random.default_rng(seed)
    return Sequential(Flatten(), Dense(rng, 64, 32), Relu(), Dense(rng, 32, CLASSES))


def to_onnx(network: Sequential, name: str) -> bytes:
    """The network as a serialized ModelProto. Raises TypeError for a layer without an operator.

    Input `image` FP32 [batch, 1, 8, 8], output `logits` FP32 [batch, 10], no softmax.
    BatchNormalization stays a node; the splitter folds it.
    """
    writer = GraphWriter(name)
    tensor = writer.input("image", [1, 8, 8])
    last = len(network.layers) - 1
    for index, layer in enumerate(network.layers):
        tensor = _write(writer, layer, tensor, index, "logits" if index == last else None)
    writer.output(tensor, [CLASSES])
    return writer.to_bytes()


def _write(
    writer: GraphWriter, layer: Layer, tensor: str, index: int, output: str | None, prefix: str = ""
) -> str:
    """Add one layer that reads `tensor`. Returns the name of its output: `output`, or its own."""
    name = output or f"{prefix}{type(layer).__name__.lower()}_{index}"
    match layer:
        case Convolution():
            weight = writer.constant(f"{name}.weight", layer.weight.value)
            attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
            return writer.add("Conv", [tensor, weight], name, **attributes)
        case BatchNormalization():
            values = {
                "scale": layer.scale.value,
                "shift": layer.shift.value,
                "mean": layer.mean,
                "variance": layer.variance,
            }
            names = [writer.constant(f"{name}.{key}", value) for key, value in values.items()]
            return writer.add("BatchNormalization", [tensor, *names], name, epsilon=layer.epsilon)
        case Relu():
            return writer.add("Relu", [tensor], name)
        case MaxPool():
            return writer.add("MaxPool", [tensor], name, kernel_shape=[2, 2], strides=[2, 2])
        case GlobalAveragePool():
            pooled = writer.add("GlobalAveragePool", [tensor], f"{name}.mean")
            return writer.add("Flatten", [pooled], name)
        case Flatten():
            return writer.add("Flatten", [tensor], name)
        case Dense():
            weight = writer.constant(f"{name}.weight", layer.weight.value)
            bias = writer.constant(f"{name}.bias", layer.bias.value)
            return writer.add("Gemm", [tensor, weight, bias], name, transB=1)
        case Residual():
            body = tensor
            for inner, part in enumerate(layer.body.layers):
                body = _write(writer, part, body, inner, None, f"{name}.")
            return writer.add("Add", [tensor, body], name)
    raise TypeError(f"no ONNX operator for {type(layer).__name__}")
