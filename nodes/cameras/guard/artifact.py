"""What a guard has learned, as a file: signed by the node or by an operator.

    msgpack map: key (nkey), signature (of the payload, for `CONTEXT`), payload: msgpack map with
    v, model, version, threshold, frames, and mean and covariance as float64, little-endian

Nothing of it is parsed before the signature is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from nodes.cameras.guard.statistics import Fitted, whitened
from swarm.errors import InvalidArgument, Untrusted
from swarm.security.files import replace
from swarm.security.identity import Identity
from swarm.security.signing import sign, verify

CONTEXT = "swarm guard 1"
LARGEST_FILE = 16 << 20  # bytes: a cut of 1400 channels
MOST_CHANNELS = 1400


def save(fitted: Fitted, path: str | Path, model: str, version: str, signer: Identity) -> None:
    """Write, or replace, the file. Raises `OSError`."""
    payload = msgpack.packb(
        {
            "v": 1,
            "model": model,
            "version": version,
            "threshold": fitted.threshold,
            "frames": fitted.frames,
            "mean": fitted.mean.astype("<f8").tobytes(),
            "covariance": fitted.covariance.astype("<f8").tobytes(),
        }
    )
    signature = sign(signer, CONTEXT, payload)
    document = {"key": signer.public, "signature": signature, "payload": payload}
    replace(Path(path), msgpack.packb(document), 0o644)


def read(path: str | Path, model: str, version: str, trusts: Callable[[str], bool]) -> Fitted:
    """The statistics in a file. trusts(key): whether its signature counts.

    Raises `OSError`; `Untrusted` for a key that is not trusted; `BadSignature` for other bytes than
    were signed; `InvalidArgument` for a file of another model or version, or that is none.
    """
    with open(path, "rb") as file:
        data = file.read(LARGEST_FILE + 1)
    outer = _map(data, path)
    key, signature, payload = (outer.get(name) for name in ("key", "signature", "payload"))
    if (
        not isinstance(key, str)
        or not isinstance(signature, bytes)
        or not isinstance(payload, bytes)
    ):
        raise InvalidArgument(f"{path} is no file of a guard")
    if not trusts(key):
        raise Untrusted(f"{path} is signed by {key:.80}, whom this node does not trust")
    verify(key, CONTEXT, payload, signature)
    inner = _map(payload, path)
    if inner.get("v") != 1:
        raise InvalidArgument(f"{path} is of a newer version: upgrade this node")
    if (inner.get("model"), inner.get("version")) != (model, version):
        raise InvalidArgument(
            f"{path} is of {inner.get('model')!s:.80}@{inner.get('version')!s:.80}, not of "
            f"{model}@{version}: remove it, and the guard learns anew"
        )
    try:
        mean = np.frombuffer(inner["mean"], "<f8").astype(np.float64)
        flat = np.frombuffer(inner["covariance"], "<f8").astype(np.float64)
        threshold, frames = float(inner["threshold"]), int(inner["frames"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{path} is no file of a guard: {error}") from None
    size = len(mean)
    is_sound = 2 <= size <= MOST_CHANNELS and len(flat) == size * size and frames >= 1
    if not is_sound or not np.isfinite([threshold, *mean, *flat]).all() or threshold <= 0:
        raise InvalidArgument(f"{path} holds numbers that are no statistics of a guard")
    covariance = flat.reshape(size, size)
    return Fitted(mean, covariance, whitened(covariance), threshold, frames)


def _map(data: bytes, path: str | Path) -> dict[Any, Any]:
    try:
        found = msgpack.unpackb(data) if len(data) <= LARGEST_FILE else None
    except Exception as error:  # msgpack raises many kinds for bytes that are none of its own
        raise InvalidArgument(f"{path} is no file of a guard: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(f"{path} is no file of a guard")
    return found
