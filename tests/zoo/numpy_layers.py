"""Layers with gradients, in plain numpy: enough to train the demo's models without a framework.

Activations are [batch, height, width, channels] or [batch, features]. With this layout a
convolution is one matrix product over im2col rows, and BatchNormalization is a reduction over the
leading axes. Weights have ONNX's layouts, so that exporting copies them unchanged. Layers work in
the dtype that they are given: FP32 to train, FP64 to check gradients.
"""

from __future__ import annotations

import numpy as np

from zoo.numpy_network import Array, Parameter


class Convolution:
    """3x3 convolution, stride 1, padding 1, no bias (BatchNormalization follows and has one).

    Weight [outputs, inputs, 3, 3], drawn with He's variance 2 / (9 * inputs) (arXiv 1502.01852).
    """

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int) -> None:
        scale = np.sqrt(2.0 / (9 * inputs))
        weight = rng.standard_normal((outputs, inputs, 3, 3)) * scale
        self.weight = Parameter(weight.astype(np.float32))

    def forward(self, x: Array, training: bool) -> Array:
        batch, height, width, channels = x.shape
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
        self._shape = x.shape
        self._rows = windows.reshape(batch * height * width, channels * 9)
        matrix = self.weight.value.reshape(-1, channels * 9)
        y: Array = self._rows @ matrix.T
        return y.reshape(batch, height, width, -1)

    def backward(self, gradient: Array) -> Array:
        batch, height, width, channels = self._shape
        rows = gradient.reshape(-1, gradient.shape[-1])
        self.weight.gradient = (rows.T @ self._rows).reshape(self.weight.value.shape)
        matrix = self.weight.value.reshape(-1, channels * 9)
        patches = (rows @ matrix).reshape(batch, height, width, channels, 3, 3)
        padded = np.zeros((batch, height + 2, width + 2, channels), gradient.dtype)
        for row in range(3):
            for column in range(3):
                into = padded[:, row : row + height, column : column + width]
                into += patches[..., row, column]
        return padded[:, 1:-1, 1:-1]

    def parameters(self) -> list[Parameter]:
        return [self.weight]


class BatchNormalization:
    """Normalizes each channel over all other axes (arXiv 1502.03167), with ONNX's epsilon of 1e-5.

    Running statistics follow with momentum 0.9; outside training they are used for normalizing.
    """

    epsilon = 1e-5

    def __init__(self, channels: int) -> None:
        self.scale = Parameter(np.ones(channels, np.float32))
        self.shift = Parameter(np.zeros(channels, np.float32))
        self.mean: Array = np.zeros(channels, np.float32)
        self.variance: Array = np.ones(channels, np.float32)

    def forward(self, x: Array, training: bool) -> Array:
        mean, variance = self.mean, self.variance
        if training:
            axes = tuple(range(x.ndim - 1))
            mean, variance = x.mean(axis=axes), x.var(axis=axes)
            self.mean = 0.9 * self.mean + 0.1 * mean
            self.variance = 0.9 * self.variance + 0.1 * variance
        self._inverse = 1 / np.sqrt(variance + self.epsilon)
        self._normalized: Array = (x - mean) * self._inverse
        y: Array = self._normalized * self.scale.value + self.shift.value
        return y

    def backward(self, gradient: Array) -> Array:
        axes = tuple(range(gradient.ndim - 1))
        self.shift.gradient = gradient.sum(axis=axes)
        self.scale.gradient = (gradient * self._normalized).sum(axis=axes)
        count = gradient.size // gradient.shape[-1]
        mean = self.shift.gradient / count
        along = self._normalized * (self.scale.gradient / count)
        dx: Array = (gradient - mean - along) * (self.scale.value * self._inverse)
        return dx

    def parameters(self) -> list[Parameter]:
        return [self.scale, self.shift]


class Relu:
    """max(x, 0)."""

    def forward(self, x: Array, training: bool) -> Array:
        self._positive = x > 0
        return np.maximum(x, 0)

    def backward(self, gradient: Array) -> Array:
        return gradient * self._positive

    def parameters(self) -> list[Parameter]:
        return []


class MaxPool:
    """The maximum of each 2x2 square. Equal maxima share the gradient."""

    def forward(self, x: Array, training: bool) -> Array:
        batch, height, width, channels = x.shape
        blocks = x.reshape(batch, height // 2, 2, width // 2, 2, channels)
        y: Array = blocks.max(axis=(2, 4), keepdims=True)
        self._mask = blocks == y
        return y.reshape(batch, height // 2, width // 2, channels)

    def backward(self, gradient: Array) -> Array:
        batch, height, width, channels = gradient.shape
        blocks = gradient.reshape(batch, height, 1, width, 1, channels)
        ties = self._mask.sum(axis=(2, 4), keepdims=True).astype(gradient.dtype)
        dx: Array = (self._mask * (blocks / ties)).reshape(batch, 2 * height, 2 * width, channels)
        return dx

    def parameters(self) -> list[Parameter]:
        return []


class GlobalAveragePool:
    """[batch, height, width, channels] to [batch, channels]."""

    def forward(self, x: Array, training: bool) -> Array:
        self._shape = x.shape
        y: Array = x.mean(axis=(1, 2))
        return y

    def backward(self, gradient: Array) -> Array:
        batch, height, width, channels = self._shape
        each = gradient.reshape(batch, 1, 1, channels) / (height * width)
        return np.broadcast_to(each, self._shape)

    def parameters(self) -> list[Parameter]:
        return []


class Flatten:
    """[batch, height, width, 1] to [batch, height * width].

    Only for one channel, where this module's layout and ONNX's [batch, channels, height, width]
    have equal orders of elements.
    """

    def forward(self, x: Array, training: bool) -> Array:
        self._shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, gradient: Array) -> Array:
        return gradient.reshape(self._shape)

    def parameters(self) -> list[Parameter]:
        return []


class Dense:
    """[batch, inputs] to [batch, outputs]. Weight [outputs, inputs] (Gemm with transB=1)."""

    def __init__(self, rng: np.random.Generator, inputs: int, outputs: int) -> None:
        weight = rng.standard_normal((outputs, inputs)) * np.sqrt(2.0 / inputs)
        self.weight = Parameter(weight.astype(np.float32))
        self.bias = Parameter(np.zeros(outputs, np.float32))

    def forward(self, x: Array, training: bool) -> Array:
        self._x = x
        y: Array = x @ self.weight.value.T + self.bias.value
        return y

    def backward(self, gradient: Array) -> Array:
        self.weight.gradient = gradient.T @ self._x
        self.bias.gradient = gradient.sum(axis=0)
        dx: Array = gradient @ self.weight.value
        return dx

    def parameters(self) -> list[Parameter]:
        return [self.weight, self.bias]
