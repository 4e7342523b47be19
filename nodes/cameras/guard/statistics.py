"""How far a picture is from those that a camera usually takes: pure.

The Mahalanobis distance (Lee et al., 2018) of a cut's channel means. A monitor of one camera, not
of the world: pictures of a scene that it never saw are far, too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from shards.guard import distance
from swarm.errors import InvalidArgument

QUANTILE, ROOM = 0.99, 1.2  # the threshold is so many times this quantile of held-out frames
HELD_OUT = 1 / 3  # the last frames of a warm-up, which are not fitted to
MEMORY = 2000  # frames, after which one counts about a third


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
    """mean: float64 [d]. covariance: float64 [d, d], as it was observed. whitening: float64 [d, d];
    the distance of x is |whitening (x - mean)|. threshold: the largest usual distance. frames:
    that it was made of."""

    mean: np.ndarray
    covariance: np.ndarray
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
        if not np.isfinite(means).all():
            return np.inf
        return float(np.linalg.norm(self.whitening @ (means - self.mean)))

    def following(self, usual: np.ndarray) -> Fitted:
        """With more usual pictures [n, d], the older ones of which count less: light changes, and a
        guard that stays as it was takes the evening for strange (measured: 1 frame in 20 after 2
        hours). The threshold stays."""
        mean, covariance, frames = self.mean, self.covariance, self.frames
        for each in usual:
            frames += 1
            share = 1 / min(frames, MEMORY)
            apart = each - mean  # Welford (1962), with a memory
            mean = mean + share * apart
            covariance = (1 - share) * (covariance + share * np.outer(apart, apart))
        return Fitted(mean, covariance, whitened(covariance), self.threshold, frames)


def whitened(covariance: np.ndarray) -> np.ndarray:
    """Of the shrunk covariance. Raises `InvalidArgument` for a matrix that is no covariance."""
    try:
        return distance.whitened(covariance)
    except np.linalg.LinAlgError:
        raise InvalidArgument("the statistics of a guard are no covariance") from None


def fit(usual: np.ndarray) -> Fitted:
    """Of the means of usual pictures, [n, d] in their order: the last third sets the threshold, as
    neighbours in time are too much alike to judge each other. Raises `InvalidArgument` for fewer
    than four, and for numbers that are none."""
    if usual.ndim != 2 or len(usual) < 4 or not np.isfinite(usual).all():
        raise InvalidArgument("a guard is fitted to four frames at least, of finite features")
    held = max(1, int(len(usual) * HELD_OUT))
    fitted_to, held_out = usual[:-held], usual[-held:]
    mean = fitted_to.mean(axis=0)
    centred = fitted_to - mean
    covariance = centred.T @ centred / len(fitted_to)
    first = Fitted(mean, covariance, whitened(covariance), 0.0, len(fitted_to))
    distances = [first.distance(each) for each in held_out]
    threshold = ROOM * float(np.quantile(distances, QUANTILE))
    return replace(first, threshold=threshold).following(held_out)
