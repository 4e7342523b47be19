"""How far a picture is from those that a camera usually takes: pure, numpy alone.

The Mahalanobis distance (Lee et al., 2018) of a cut's channel means. A monitor of one camera, not
of the world: pictures of a scene that it never saw are far, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from swarm.errors import InvalidArgument

SHRINK = 0.1  # of the covariance towards its diagonal
QUANTILE, ROOM = 0.99, 1.2  # the threshold is so many times this quantile of held-out frames
HELD_OUT = 1 / 3  # the last frames of a warm-up, which are not fitted to
LEAST_VARIANCE = 1e-6  # beside the mean variance: a channel that never changes has a little


def pooled(features: np.ndarray) -> np.ndarray:
    """float64 [channels]: the mean of each channel of a cut [1, channels, …]. Raises
    `InvalidArgument` for a tensor without channels."""
    if features.ndim < 2 or features.shape[0] != 1 or features.shape[1] < 2 or not features.size:
        raise InvalidArgument(
            f"--guard: a cut of shape {list(features.shape)} has no channels [1, channels, …]: "
            "split the model elsewhere (`swarm model split --edge-layers`)"
        )
    means: np.ndarray = features[0].reshape(features.shape[1], -1).mean(axis=1, dtype=np.float64)
    return means


@dataclass(frozen=True, slots=True)
class Fitted:
    """mean: float64 [d]. whitening: float64 [d, d]; the distance of x is |whitening (x - mean)|.
    threshold: the largest usual distance. frames: fitted to."""

    mean: np.ndarray
    whitening: np.ndarray
    threshold: float
    frames: int

    def distance(self, means: np.ndarray) -> float:
        """Of one picture; `inf` where a number of it is none. Raises `InvalidArgument` for another
        number of channels."""
        if means.shape != self.mean.shape:
            raise InvalidArgument(
                f"--guard was fitted to {len(self.mean)} channels, the cut has {len(means)}: it "
                "belongs to another version of the model"
            )
        distance = float(np.linalg.norm(self.whitening @ (means - self.mean)))
        return distance if np.isfinite(distance) else np.inf


def fit(usual: np.ndarray) -> Fitted:
    """Of the means of usual pictures, [n, d] in their order. Raises `InvalidArgument` for fewer
    than four, and for numbers that are none."""
    if usual.ndim != 2 or len(usual) < 4 or not np.isfinite(usual).all():
        raise InvalidArgument("a guard is fitted to four frames at least, of finite features")
    held = max(1, int(len(usual) * HELD_OUT))
    fitted_to, held_out = usual[:-held], usual[-held:]
    mean = fitted_to.mean(axis=0)
    centred = fitted_to - mean
    covariance = centred.T @ centred / len(fitted_to)
    variances = np.diag(covariance)
    covariance = (1 - SHRINK) * covariance + SHRINK * np.diag(variances)
    floor = LEAST_VARIANCE * max(float(variances.mean()), 1e-12)
    covariance[np.diag_indices_from(covariance)] += floor
    whitening = np.linalg.inv(np.linalg.cholesky(covariance))
    fitted = Fitted(mean, whitening, 0.0, len(fitted_to))
    distances = [fitted.distance(each) for each in held_out]
    threshold = ROOM * float(np.quantile(distances, QUANTILE))
    return Fitted(mean, whitening, threshold, len(fitted_to))
