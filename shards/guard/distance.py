"""How far a row of numbers is from those of calibration: the Mahalanobis distance of K. Lee et al.,
"A Simple Unified Framework for Detecting Out-of-Distribution Samples" (2018), with one class."""

from __future__ import annotations

import numpy as np

SHRINK = 0.1  # of the covariance towards its diagonal (Ledoit and Wolf, 2004, with a fixed share)
LEAST_VARIANCE = 1e-6  # beside the mean variance: a number that never changes has a little


def whitened(covariance: np.ndarray) -> np.ndarray:
    """float64 [d, d], the inverse of the Cholesky factor of the shrunk covariance [d, d]: the
    distance of x is |whitened @ (x - mean)|. Raises `numpy.linalg.LinAlgError` for a matrix that
    is no covariance."""
    variances = np.diag(covariance)
    shrunk = (1 - SHRINK) * covariance + SHRINK * np.diag(variances)
    least = LEAST_VARIANCE * max(float(variances.mean()), 1e-12)
    shrunk[np.diag_indices_from(shrunk)] += least
    inverse: np.ndarray = np.linalg.inv(np.linalg.cholesky(shrunk))
    return inverse


def fitted(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean [d] and the whitening [d, d] of finite rows [n, d]. Raises as `whitened`."""
    mean = rows.mean(axis=0)
    centred = rows - mean
    return mean, whitened(centred.T @ centred / len(rows))


def distances(rows: np.ndarray, mean: np.ndarray, whitening: np.ndarray) -> np.ndarray:
    """float64 [n] of rows [n, d]; infinite where a number of a row is none."""
    apart = (rows - mean) @ whitening.T
    far: np.ndarray = np.sqrt(np.einsum("nd,nd->n", apart, apart))
    far[~(far < np.inf)] = np.inf
    return far
