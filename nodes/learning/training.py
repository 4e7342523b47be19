"""One learner's own training: some steps of descent on the samples of this host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from nodes.learning.head import Array, HeadLayout, Momentum, Parameters, smooth_rate
from nodes.learning.options import LearnOptions
from nodes.learning.privacy import private_gradient
from nodes.learning.samples import SampleWindow

MOST_LENGTH = 8.0  # of a sample, in median lengths of all samples
MOST_JUDGED = 256  # held-out samples that one round's accuracies are measured on


class Training:
    """steps: of descent since the start. seed: of the order of samples, and of the noise."""

    def __init__(
        self,
        layout: HeadLayout,
        samples: SampleWindow,
        options: LearnOptions,
        seed: int | None = None,
    ) -> None:
        self.layout = layout
        self.samples = samples
        self.steps = 0
        self._options = options
        # Noise has to be unpredictable: without a seed it comes from the system.
        self._rng = np.random.default_rng(seed)
        self._descent = Momentum(1.0, options.momentum)

    @property
    def can_learn(self) -> bool:
        """Whether there are samples of two classes at least."""
        labels = self.samples.training[1]
        return bool(len(labels)) and bool((labels != labels[0]).any())

    def round(self, parameters: Mapping[str, Array]) -> Iterator[Parameters]:
        """The parameters after each step of one round; the last ones are the round's."""
        # The gradient may be stopped at any step: parameters are never changed in place.
        now = dict(parameters)
        for _ in range(self._options.steps):
            now = self._step(now)
            self.steps += 1
            yield now

    def _step(self, parameters: Parameters) -> Parameters:
        options = self._options
        features, labels = self.samples.training
        if options.privacy.noise:
            # Clipped gradients have a length that is known, whatever the samples are: their own
            # lengths may not show in the step size.
            gradient = private_gradient(
                self.layout, parameters, features, labels, options.privacy, self._rng
            )
            self._descent.rate = options.rate / 8 / options.privacy.clip
            return self._descent.step(parameters, gradient)
        features = tempered(features)
        count = min(options.batch, len(labels))
        chosen = self._rng.choice(len(labels), count, replace=False)
        gradient = self.layout.gradient(parameters, features[chosen], labels[chosen], options.l2)
        self._descent.rate = options.rate * smooth_rate(features) * (1 - options.momentum)
        return self._descent.step(parameters, gradient)

    def forget_velocity(self) -> None:
        """The parameters came from elsewhere."""
        self._descent.forget()

    def accuracy(self, parameters: Mapping[str, Array], most: int = MOST_JUDGED) -> float:
        """On the held-out samples of this node, `most` of them at the most; 0.0 without any."""
        features, labels = self.samples.held_out
        return self.layout.accuracy(parameters, features[-most:], labels[-most:])

    @property
    def judged(self) -> int:
        """Held-out samples that `accuracy` is measured on."""
        return min(MOST_JUDGED, len(self.samples.held_out[1]))


def tempered(features: Array) -> Array:
    """The samples [n, width], those that are longer than `MOST_LENGTH` times the median as long as
    that. Others' samples share the step size and the gradient with them: one that is a thousand
    times as long stops the learning of all."""
    with np.errstate(over="ignore"):  # a length beyond FP32 is infinite, which is long enough
        lengths = np.sqrt(np.einsum("nw,nw->n", features, features))
    there = lengths[lengths > 0]
    bound = MOST_LENGTH * float(np.median(there)) if len(there) else np.inf
    long = lengths > bound
    if not long.any():
        return features
    shorter, rows = features.copy(), features[long].astype(np.float64)
    shorter[long] = rows * (bound / np.linalg.norm(rows, axis=1))[:, None]
    return shorter


def change(before: Mapping[str, Array], after: Mapping[str, Array]) -> Parameters:
    """What has to be added to `before` for `after`."""
    return {name: value - before[name] for name, value in after.items()}
