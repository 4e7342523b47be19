"""Where the detector of the benchmarks lies."""

from __future__ import annotations

import os
from pathlib import Path

from bench.rivals.processes import REPOSITORY


class NoModel(ValueError):
    """The model is not on this machine; the message says how to name a file."""


def ultraface_file(given: str = "") -> Path:
    """The detector's ONNX file: `given` (file or folder), else the folder SWARM_TEST_MODELS, else
    `shared/models` beside the repository. Raises `NoModel`."""
    models = Path(os.environ.get("SWARM_TEST_MODELS", REPOSITORY.parent / "shared" / "models"))
    path = Path(given) if given else models / "ultraface"
    if path.is_dir():
        path = next(iter(sorted(path.glob("*.onnx"))), path / "version-RFB-320.onnx")
    if not path.is_file():
        raise NoModel(f"no UltraFace model at {path}: name one with --ultraface FILE")
    return path
