"""Differentially private training: clipped gradients, noise, and the epsilon that they cost.

DP-SGD (Abadi et al., arXiv 1607.00133): each step takes every training sample with a fixed chance,
clips each sample's gradient to a norm, and adds Gaussian noise to their sum. Epsilon is computed
by Google's `dp-accounting` (Renyi accountant; Mironov, arXiv 1702.07476), the extra
`swarm-mesh[privacy]`.

It covers everything that follows from the training samples. Held-out samples have no part in
training, but the accuracy that is measured on them is published, and is not covered.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nodes.learning.head import Array, HeadLayout, Labels, Parameters
from nodes.learning.options import SamplePrivacy

# Renyi orders. Any set of them gives a bound that holds; at fractions near 1 the series of the
# sampled Gaussian do not converge.
ORDERS = (1.75, 2.25, 2.5, *range(2, 64), 80, 96, 128, 192, 256, 512)


def private_gradient(
    head: HeadLayout,
    parameters: Mapping[str, Array],
    features: Array,
    labels: Labels,
    privacy: SamplePrivacy,
    rng: np.random.Generator,
) -> Parameters:
    """One step's gradient over samples drawn here from all training samples.

    The sum is divided by the expected number of samples: the true one would tell of them.
    """
    drawn = rng.random(len(labels)) < privacy.sampling
    chosen, errors = features[drawn], head.errors(parameters, features[drawn], labels[drawn])
    # A sample's gradient is the product of (x, 1) and its errors, so is the norm.
    shift = 0.0 if head.bias is None else 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.square(chosen).sum(axis=1) + shift) * np.linalg.norm(errors, axis=1)
        errors = errors * np.minimum(1.0, privacy.clip / np.maximum(lengths, 1e-12))[:, None]
    # A sample whose numbers are beyond FP32 has no gradient: it would be that of all others, too.
    errors[~np.isfinite(errors).all(axis=1)] = 0
    deviation = privacy.noise * privacy.clip
    matrix = chosen.T @ errors + rng.normal(0, deviation, (head.width, head.classes))
    bias = errors.sum(axis=0) + rng.normal(0, deviation, head.classes)
    expected = max(1.0, privacy.sampling * len(labels))
    return head.parameters(matrix / expected, bias / expected)


def epsilon_of(privacy: SamplePrivacy, steps: int) -> float:
    """Epsilon at `privacy.delta` after that many steps; 0.0 before the first.

    For neighbours by adding or removing one sample. Takes some 0.1 s, and seconds at first for the
    accountant's own imports: call it in a thread.
    """
    if steps < 1:
        return 0.0
    import dp_accounting
    from dp_accounting import rdp

    step = dp_accounting.PoissonSampledDpEvent(
        privacy.sampling, dp_accounting.GaussianDpEvent(privacy.noise)
    )
    accountant = rdp.RdpAccountant(ORDERS)
    accountant.compose(step, steps)
    return float(accountant.get_epsilon(privacy.delta))
