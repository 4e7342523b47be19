"""`swarm teach`: labelled samples for the learner of this host."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from nodes.cli.options import TeachOptions
from nodes.console import duration, guarded, out, print_json
from swarm.errors import InvalidArgument
from swarm.learning.teaching import teach


def run_teach(model: str, options: TeachOptions) -> int:
    """`swarm teach`; returns its exit code."""

    async def main() -> int:
        name, _, version = model.partition("@")
        truth = read_labels(options.labels)
        taught = await teach(
            options.mesh,
            name,
            version,
            read_inputs(options.input),
            truth,
            node=options.node,
            timeout=duration(options.timeout),
            only_test=options.test,
        )
        doc: dict[str, Any] = {
            "model": name,
            "version": taught.version,
            "node": taught.node,
            "samples": len(truth),
            "trained_on": taught.trained_on,
            "held_out": taught.held_out,
            "classes": list(taught.classes),
        }
        if taught.accuracy is not None:
            doc["accuracy"] = round(taught.accuracy, 4)
        if options.json:
            print_json(doc)
            return 0
        if taught.accuracy is not None:
            out.print(f"{taught.node}: accuracy {taught.accuracy:.4f} of {len(truth)} samples")
            return 0
        classes = ", ".join(map(str, taught.classes))
        out.print(
            f"{taught.node} took {len(truth)} samples: {taught.trained_on} to train on, "
            f"{taught.held_out} held out; it has the classes {classes}"
        )
        out.print(f"next: swarm model weights {name}")
        return 0

    return guarded(main, options.json)


def read_inputs(path: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, by name. Raises `InvalidArgument`."""
    return _read(path)


def read_labels(path: str) -> np.ndarray:
    """The labels in an .npz file with one array, or in an .npy file. Raises `InvalidArgument`."""
    arrays = _read(path)
    if len(arrays) != 1:
        names = ", ".join(sorted(arrays)) or "none"
        raise InvalidArgument(f"{path}: one array of labels is expected, it has: {names}")
    return next(iter(arrays.values()))


def _read(path: str) -> dict[str, np.ndarray]:
    try:
        if Path(path).suffix not in (".npz", ".npy"):
            raise InvalidArgument(f"{path}: give an .npz file, as `numpy.savez` writes it")
        # Without pickles: such a file may run code where it is read.
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"labels": loaded}
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidArgument(f"{path}: {error}") from None
