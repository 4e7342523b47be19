"""A workload from a model that our splitter cut: the stages that every contender then runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bench.rivals.workload import WHOLE_FILE, Workload

if TYPE_CHECKING:
    from shards.manifest import TensorSpec
    from shards.split.split import SplitResult


def write_split(
    directory: Path,
    model: bytes,
    result: SplitResult,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
    in_flight: int,
) -> Workload:
    """Write the stages of a split, and the model before it, as a workload for batch 1.

    in_flight: requests that are under way at once where a contender is asked for many together.
    Raises `ValueError` when a stage has carried tensors or no layers: every contender runs a plain
    chain of sessions. Dynamic dimensions become those that the split was proved with
    (`extra["examples"]`).
    """
    directory.mkdir(parents=True, exist_ok=True)
    manifest = result.manifest
    shapes: dict[str, list[int]] = manifest.extra.get("examples", {})

    def spec(item: TensorSpec) -> dict[str, object]:
        shape = [1 if dim == -1 else dim for dim in item.shape]
        return {
            "name": item.name,
            "dtype": item.dtype.name,
            "shape": shapes.get(item.name, shape) if -1 in item.shape else shape,
        }

    stages = []
    following = None
    for shard in manifest.shards:
        if shard.carries or not shard.file or shard.stage == 0:
            raise ValueError(f"stage {shard.stage} is not a plain session of its own")
        (directory / f"stage-{shard.stage}.onnx").write_bytes(result.files[shard.file])
        # The next stage takes what this one gives, in the same order.
        takes = following or [spec(item) for item in shard.receives]
        following = [spec(item) for item in shard.sends]
        stages.append({"inputs": takes, "outputs": following})
    (directory / WHOLE_FILE).write_bytes(model)
    np.savez(directory / "input.npz", **inputs)  # type: ignore[arg-type]
    np.savez(directory / "expected.npz", **expected)  # type: ignore[arg-type]
    meta = {"v": 1, "kind": manifest.model, "in_flight": in_flight, "stages": stages}
    (directory / "meta.json").write_text(json.dumps(meta))
    return Workload.load(directory)
