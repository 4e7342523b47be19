"""The models: graphs, cuts, shards, manifests, runtimes. Knows no network.

Names are loaded on first use, so a device that only runs shards never imports `onnx`. The function
that splits a model is `shards.split.split.split`: it is not in this list, because the name
`shards.split` belongs to its package.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shards.errors import (
        ArtifactError,
        DeltaError,
        InputError,
        ManifestError,
        ModelError,
        RunError,
        RunTerminated,
        ShardsError,
        SplitError,
    )
    from shards.manifest import Manifest, Shard, TensorSpec, read_dir, write_dir
    from shards.runtimes.load import load_lighter, load_stage
    from shards.runtimes.ort import OrtRuntime
    from shards.runtimes.runtime import CancelToken, Runtime
    from shards.runtimes.stage import StageRuntime
    from shards.split.split import SplitResult

# From 1.29 on, the official wheels of ONNX Runtime send usage data to their maker, and keep it in a
# database in the user's cache folder until then. A device of a fleet must not do so unasked. The
# library reads this variable when it is loaded; its `disable_telemetry_events` comes too late.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

_MODULE_OF_NAME = {
    "ArtifactError": "errors",
    "CancelToken": "runtimes.runtime",
    "DeltaError": "errors",
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
    "StageRuntime": "runtimes.stage",
    "TensorSpec": "manifest",
    "load_lighter": "runtimes.load",
    "load_stage": "runtimes.load",
    "read_dir": "manifest",
    "write_dir": "manifest",
}

__all__ = [
    "ArtifactError",
    "CancelToken",
    "DeltaError",
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
    module = _MODULE_OF_NAME.get(name)
    if module is None:
        raise AttributeError(f"module 'shards' has no attribute {name!r}")
    value = getattr(import_module(f"shards.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
