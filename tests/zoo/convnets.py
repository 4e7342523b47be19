"""ResNet-50 and MobileNetV2 with their published topology and random weights.

BatchNormalization stays a node with plausible running statistics, as in an export from training,
so that splitting has to fuse it.
"""

from __future__ import annotations

import numpy as np

from zoo.graph_writer import GraphWriter


def resnet50(
    size: int = 224,
    width_multiplier: float = 1.0,
    *,
    classes: int = 1000,
    batch: int | None = None,
    seed: int = 0,
) -> bytes:
    """ResNet-50 (arXiv 1512.03385, table 1; stride in the 3x3, as torchvision has it).

    Input `image` FP32 [batch, 3, size, size], output `logits` FP32 [batch, classes]. Channels are
    scaled by `width_multiplier` to multiples of 8. At 1.0: 25,557,032 trained weights, 102 MB.
    """
    writer = _ConvnetWriter("resnet50", batch=batch, seed=seed)
    tensor = writer.input("image", [3, size, size])
    channels = _scaled(64, width_multiplier)
    tensor = writer.relu(writer.convolution(tensor, "stem", 3, channels, kernel=7, stride=2))
    tensor = writer.add(
        "MaxPool", [tensor], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
    )
    for group, (blocks, base) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
        inner, outer = _scaled(base, width_multiplier), 4 * _scaled(base, width_multiplier)
        for block in range(1, blocks + 1):
            stride = 2 if block == 1 and group > 1 else 1
            name = f"group_{group}.block_{block}"
            body = writer.relu(writer.convolution(tensor, f"{name}.reduce", channels, inner))
            body = writer.convolution(body, f"{name}.spatial", inner, inner, 3, stride)
            body = writer.relu(body)
            body = writer.convolution(body, f"{name}.expand", inner, outer, branch=True)
            if block == 1:
                tensor = writer.convolution(
                    tensor, f"{name}.shortcut", channels, outer, stride=stride
                )
            tensor = writer.relu(writer.add("Add", [tensor, body], f"{name}.sum"))
            channels = outer
    return writer.classify(tensor, channels, classes)


def mobilenet(
    size: int = 224,
    width_multiplier: float = 1.0,
    *,
    classes: int = 1000,
    batch: int | None = None,
    seed: int = 0,
) -> bytes:
    """MobileNetV2 (arXiv 1801.04381, table 2): inverted residuals, depthwise convolutions, Relu6.

    Input `image` FP32 [batch, 3, size, size], output `logits` FP32 [batch, classes]. Channels are
    scaled by `width_multiplier` to multiples of 8. At 1.0: 3,504,872 trained weights, 14 MB.
    """
    writer = _ConvnetWriter("mobilenet", batch=batch, seed=seed)
    tensor = writer.input("image", [3, size, size])
    channels = _scaled(32, width_multiplier)
    tensor = writer.relu6(writer.convolution(tensor, "stem", 3, channels, kernel=3, stride=2))
    # Expansion, channels, blocks, stride of the first block.
    rows = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for group, (expansion, base, blocks, first_stride) in enumerate(rows, start=1):
        outputs = _scaled(base, width_multiplier)
        for block in range(1, blocks + 1):
            stride = first_stride if block == 1 else 1
            name = f"group_{group}.block_{block}"
            inner, body = channels * expansion, tensor
            if expansion > 1:
                body = writer.relu6(writer.convolution(body, f"{name}.expand", channels, inner))
            body = writer.convolution(
                body, f"{name}.depthwise", inner, inner, 3, stride, groups=inner
            )
            body = writer.relu6(body)
            residual = stride == 1 and channels == outputs
            body = writer.convolution(body, f"{name}.project", inner, outputs, branch=residual)
            tensor = writer.add("Add", [tensor, body], f"{name}.sum") if residual else body
            channels = outputs
    # The last layer is never thinned below its published width (section 4 of the paper).
    last = _scaled(1280, max(1.0, width_multiplier))
    tensor = writer.relu6(writer.convolution(tensor, "head", channels, last))
    return writer.classify(tensor, last, classes)


class _ConvnetWriter(GraphWriter):
    """A graph writer that knows the layers of convolutional networks."""

    def convolution(
        self,
        tensor: str,
        name: str,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        stride: int = 1,
        *,
        groups: int = 1,
        branch: bool = False,
    ) -> str:
        """Conv without bias, then BatchNormalization with the output `name`. Returns that name.

        `branch` says that the output will be added to a shortcut. Its scale is a quarter then, or
        the variance would double with each of the network's blocks.
        """
        shape = [outputs, inputs // groups, kernel, kernel]
        weight = self.weight(f"{name}.weight", shape, shape[1] * kernel * kernel)
        convolved = self.add(
            "Conv",
            [tensor, weight],
            f"{name}.conv",
            kernel_shape=[kernel, kernel],
            strides=[stride, stride],
            pads=[kernel // 2] * 4,
            group=groups,
        )
        scale = self.random.uniform(0.8, 1.2, outputs) * (0.25 if branch else 1.0)
        statistics = {
            "scale": scale,
            "shift": self.random.normal(0, 0.1, outputs),
            "mean": self.random.normal(0, 0.1, outputs),
            "variance": self.random.uniform(0.8, 1.2, outputs),
        }
        names = [
            self.constant(f"{name}.{key}", value.astype(np.float32))
            for key, value in statistics.items()
        ]
        return self.add("BatchNormalization", [convolved, *names], name, epsilon=1e-5)

    def relu(self, tensor: str) -> str:
        return self.add("Relu", [tensor], f"{tensor}.relu")

    def relu6(self, tensor: str) -> str:
        bounds = [self.scalar("zero", 0.0), self.scalar("six", 6.0)]
        return self.add("Clip", [tensor, *bounds], f"{tensor}.relu6")

    def classify(self, tensor: str, channels: int, classes: int) -> bytes:
        pooled = self.add("GlobalAveragePool", [tensor], "mean")
        flat = self.add("Flatten", [pooled], "features")
        self.output(self.dense(flat, "logits", channels, classes, gain=1.0), [classes])
        return self.to_bytes()


def _scaled(channels: int, multiplier: float) -> int:
    """The multiple of 8 nearest to `channels * multiplier`, at least 8 and never 10 % below it."""
    wanted = channels * multiplier
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * wanted else rounded + 8
