"""Arrays that commands read from files of numpy, or make up."""

from __future__ import annotations

from zipfile import BadZipFile

import numpy as np

import swarm
from shards.manifest import Manifest
from shards.runtimes.synthetic import random_feeds
from swarm.errors import InvalidArgument, PermissionDenied


def read_inputs(path: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, by name. Raises `InvalidArgument`."""
    arrays = _load(path)
    if isinstance(arrays, np.ndarray):
        raise InvalidArgument(
            f"{path} is no .npz file of arrays: write one with numpy.savez(path, input_name=array)"
        )
    return arrays


def read_labels(path: str) -> np.ndarray:
    """The labels in an .npz file with one array, or in an .npy file. Raises `InvalidArgument`."""
    arrays = _load(path)
    if isinstance(arrays, np.ndarray):
        return arrays
    if len(arrays) != 1:
        names = ", ".join(sorted(arrays)) or "none"
        raise InvalidArgument(f"{path}: one array of labels is expected, it has: {names}")
    return next(iter(arrays.values()))


def _load(path: str) -> dict[str, np.ndarray] | np.ndarray:
    try:
        # Without pickles: such a file may run code where it is read.
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return dict(loaded)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise InvalidArgument(
            f"{path} is no .npz file of arrays ({error}): write one with numpy.savez(path, "
            "input_name=array)"
        ) from None


async def random_inputs(client: swarm.Mesh, model: str) -> dict[str, np.ndarray]:
    """Random arrays that the model takes; free dimensions as they were when it was split.

    Raises `NotFound`, `Unavailable`, `PermissionDenied`."""
    try:
        info = await client.model(model)
        manifest = Manifest.from_json(await client.registry.manifest(info.model, info.version))
    except PermissionDenied as error:
        raise PermissionDenied(f"--random: {error}; give --input FILE.npz") from None
    return random_feeds(manifest.inputs, manifest.extra.get("examples"))
