"""Training a network in plain numpy: parameters, composition of layers, a loss, Adam.

The layers themselves are in `zoo.numpy_layers`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(eq=False)
class Parameter:
    """One trained tensor and the gradient of the last `backward`, of the same shape and dtype."""

    value: Array
    gradient: Array = field(init=False)

    def __post_init__(self) -> None:
        self.gradient = np.zeros_like(self.value)


class Layer(Protocol):
    """A step of a network.

    `backward` takes the gradient of the output of the last `forward`, returns the gradient of its
    input, and stores the gradients of the parameters.
    """

    def forward(self, x: Array, training: bool) -> Array: ...
    def backward(self, gradient: Array) -> Array: ...
    def parameters(self) -> list[Parameter]: ...


class Sequential:
    """Layers one after the other, itself a layer."""

    def __init__(self, *layers: Layer) -> None:
        self.layers = layers

    def forward(self, x: Array, training: bool) -> Array:
        for layer in self.layers:
            x = layer.forward(x, training)
        return x

    def backward(self, gradient: Array) -> Array:
        for layer in reversed(self.layers):
            gradient = layer.backward(gradient)
        return gradient

    def parameters(self) -> list[Parameter]:
        return [parameter for layer in self.layers for parameter in layer.parameters()]


class Residual:
    """The layer x + body(x)."""

    def __init__(self, body: Sequential) -> None:
        self.body = body

    def forward(self, x: Array, training: bool) -> Array:
        return x + self.body.forward(x, training)

    def backward(self, gradient: Array) -> Array:
        return gradient + self.body.backward(gradient)

    def parameters(self) -> list[Parameter]:
        return self.body.parameters()


class Adam:
    """Adam (arXiv 1412.6980) with decoupled weight decay (arXiv 1711.05101)."""

    def __init__(self, parameters: list[Parameter], decay: float) -> None:
        self._parameters = parameters
        self._decay = decay
        self._step = 0
        self._first = [np.zeros_like(parameter.value) for parameter in parameters]
        self._second = [np.zeros_like(parameter.value) for parameter in parameters]

    def step(self, rate: float) -> None:
        """One update of every parameter by its gradient, at learning rate `rate`."""
        self._step += 1
        unbias_first, unbias_second = 1 - 0.9**self._step, 1 - 0.999**self._step
        for parameter, first, second in zip(
            self._parameters, self._first, self._second, strict=True
        ):
            first += 0.1 * (parameter.gradient - first)
            second += 0.001 * (parameter.gradient**2 - second)
            update = (first / unbias_first) / (np.sqrt(second / unbias_second) + 1e-8)
            # Biases and normalization (rank 1) are left free, as usual.
            decay = self._decay if parameter.value.ndim > 1 else 0.0
            parameter.value -= rate * (update + decay * parameter.value)


def cross_entropy(logits: Array, labels: NDArray[np.int64]) -> tuple[float, Array]:
    """Mean cross-entropy in nats, and its gradient [batch, classes]."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    probabilities: Array = exponentials / exponentials.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -float(np.mean(np.log(probabilities[rows, labels] + 1e-12)))
    probabilities[rows, labels] -= 1
    return loss, probabilities / len(labels)
