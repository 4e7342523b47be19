"""The models: graph, cuts, split, manifest, runtimes. Knows no network.

Names are loaded on first use: a device that only runs shards never imports `onnx`. The function
that splits is `shards.split.split.split`: one name cannot be both the function and its package.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shards.errors import (
        ArtifactError,
        InputError,
        ManifestError,
        ModelError,
        RunError,
        RunTerminated,
        ShardsError,
        SplitError,
    )
    from shards.manifest import Manifest, Shard, TensorSpec, read_dir, write_dir
    from shards.runtimes.load import StageRuntime, load_lighter, load_stage
    from shards.runtimes.ort import OrtRuntime
    from shards.runtimes.runtime import CancelToken, Runtime
    from shards.split.split import SplitResult

# From 1.29 on, the official wheels of ONNX Runtime send usage data to their maker, and keep it in a
# database in the user's cache folder until they can. No device of a fleet does so unasked. It is
# read when the library is loaded; `disable_telemetry_events` comes too late, and did not stop it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_HOME = {
    "ArtifactError": "errors",
    "CancelToken": "runtimes.runtime",
    "InputError": "errors",
    "Manifest": "manifest",
    "ManifestError": "errors",
    "ModelError": "errors",
    "OrtRuntime": "runtimes.ort",
    "RunError": "errors",
    "RunTerminated": "errors",
    "Runtime": "runtimes.runtime",
    "Shard": "manifest",
    "ShardsError": "errors",
    "SplitError": "errors",
    "SplitResult": "split.split",
    "StageRuntime": "runtimes.load",
    "TensorSpec": "manifest",
    "load_lighter": "runtimes.load",
    "load_stage": "runtimes.load",
    "read_dir": "manifest",
    "write_dir": "manifest",
}

__all__ = [
    "ArtifactError",
    "CancelToken",
    "InputError",
    "Manifest",
    "ManifestError",
    "ModelError",
    "OrtRuntime",
    "RunError",
    "RunTerminated",
    "Runtime",
    "Shard",
    "ShardsError",
    "SplitError",
    "SplitResult",
    "StageRuntime",
    "TensorSpec",
    "load_lighter",
    "load_stage",
    "read_dir",
    "write_dir",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'shards' has no attribute {name!r}")
    value = getattr(import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
