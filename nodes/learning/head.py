"""The trainable head: softmax regression on frozen features.

    p = softmax(x W + b),   loss = mean of -log p[label] + l2 / 2 * |W|^2

Parameters go by the names and in the layout of the model's last shard, so that a learned value can
replace a shipped one as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Parameters = dict[str, Array]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class HeadLayout:
    """weight: name of the tensor [width, classes], or [classes, width] where `transposed`. bias:
    name of the tensor [classes], None for a head without one."""

    weight: str
    bias: str | None
    width: int
    classes: int
    transposed: bool

    def matrix(self, parameters: Mapping[str, Array]) -> Array:
        """The weight as [width, classes], a view."""
        weight = parameters[self.weight]
        return weight.T if self.transposed else weight

    def parameters(self, matrix: Array, bias: Array | None) -> Parameters:
        """From [width, classes] and [classes] to named tensors in the shard's layout."""
        weight = np.ascontiguousarray(matrix.T if self.transposed else matrix, np.float32)
        named = {self.weight: weight}
        if self.bias is not None:
            shift = np.zeros(self.classes, np.float32) if bias is None else bias
            named[self.bias] = np.ascontiguousarray(shift, np.float32)
        return named

    def fresh(self) -> Parameters:
        """A head that knows nothing: zeros, which give each class the same probability."""
        return self.parameters(np.zeros((self.width, self.classes), np.float32), None)

    def logits(self, parameters: Mapping[str, Array], features: Array) -> Array:
        """FP32 [n, classes] of features [n, width]."""
        logits: Array = features @ self.matrix(parameters)
        return logits if self.bias is None else logits + parameters[self.bias]

    def probabilities(self, parameters: Mapping[str, Array], features: Array) -> Array:
        """FP32 [n, classes]; each row sums to 1."""
        logits = self.logits(parameters, features)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities: Array = powers / powers.sum(axis=1, keepdims=True)
        return probabilities

    def accuracy(self, parameters: Mapping[str, Array], features: Array, labels: Labels) -> float:
        """The share of samples whose label has the largest logit; 0.0 without samples."""
        if not len(labels):
            return 0.0
        return float(np.mean(self.logits(parameters, features).argmax(axis=1) == labels))

    def loss(self, parameters: Mapping[str, Array], features: Array, labels: Labels) -> float:
        """Mean cross-entropy in nats, without the L2 term."""
        found = self.probabilities(parameters, features)[np.arange(len(labels)), labels]
        return float(-np.log(np.maximum(found, 1e-30)).mean())

    def errors(self, parameters: Mapping[str, Array], features: Array, labels: Labels) -> Array:
        """The loss's gradient by each sample's logits: p - onehot(label), FP32 [n, classes]."""
        errors = self.probabilities(parameters, features)
        errors[np.arange(len(labels)), labels] -= 1
        return errors

    def gradient(
        self, parameters: Mapping[str, Array], features: Array, labels: Labels, l2: float
    ) -> Parameters:
        """Of the mean loss with its L2 term; named and laid out as the parameters."""
        errors = self.errors(parameters, features, labels) / np.float32(len(labels))
        matrix = features.T @ errors + np.float32(l2) * self.matrix(parameters)
        return self.parameters(matrix, errors.sum(axis=0))


@dataclass
class Momentum:
    """Stochastic gradient descent with heavy-ball momentum (Polyak, 1964).

    rate: of a step, by the gradient's unit. decay: share of the velocity that a step keeps, 0..1.
    """

    rate: float
    decay: float = 0.0
    _velocity: Parameters = field(default_factory=dict)

    def step(self, parameters: Parameters, gradient: Mapping[str, Array]) -> Parameters:
        """New parameters; the old ones stay as they are."""
        for name, value in gradient.items():
            before = self._velocity.get(name)
            self._velocity[name] = value if before is None else self.decay * before + value
        return {
            name: (value - np.float32(self.rate) * self._velocity[name]).astype(np.float32)
            for name, value in parameters.items()
        }

    def forget(self) -> None:
        """Start again without velocity, as after parameters that came from elsewhere."""
        self._velocity.clear()


def smooth_rate(features: Array) -> float:
    """A step size at which plain descent on this head cannot diverge: 1 / L, with the gradient's
    Lipschitz constant L <= mean(|x|^2 + 1) / 2 of softmax regression (Bohning, 1992)."""
    if not len(features):
        return 1.0
    return float(2.0 / (np.square(features).sum(axis=1).mean() + 1.0))
