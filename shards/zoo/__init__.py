"""Trained models of digits for the demos, and their images. Reading them needs numpy only; the
tests' `zoo.train_digits` makes them."""

from __future__ import annotations

import io
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["digits_heldout", "digits_lite_model", "digits_model", "digits_training"]


def digits_model() -> bytes:
    """The trained residual network, a serialized ONNX model.

    Input `image` FP32 [batch, 1, 8, 8] in 0..1, output `logits` FP32 [batch, 10], no softmax.
    """
    return _data_file("digits.onnx")


def digits_lite_model() -> bytes:
    """A much lighter model with the input and output of `digits_model`, for degraded answers."""
    return _data_file("digits-lite.onnx")


def digits_heldout() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images FP32 [540, 1, 8, 8] in 0..1 and labels INT64 [540] that neither model was trained on.

    Source: the optical digits of the UCI repository (E. Alpaydin, C. Kaynak) in scikit-learn.
    """
    return _images("digits-heldout.npz")


def digits_training() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images FP32 [1257, 1, 8, 8] in 0..1 and labels INT64 [1257] that both models were trained on.

    Together with `digits_heldout` they are all of scikit-learn's digits, each image once.
    """
    return _images("digits-training.npz")


def _images(name: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    archive: Any = np.load(io.BytesIO(_data_file(name)), allow_pickle=False)
    with archive:
        # Stored as counts of 0..16, which take a quarter of the size and are exact in FP32.
        images = archive["images"].astype(np.float32) / np.float32(16)
        labels = archive["labels"].astype(np.int64)
    return images, labels


def _data_file(name: str) -> bytes:
    """The bytes of a file in the package's folder `data`."""
    return files(__name__).joinpath("data", name).read_bytes()
