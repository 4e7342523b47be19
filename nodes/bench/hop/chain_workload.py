"""The workload of `swarm bench hop`: a chain of stages with features of a chosen size.

Our own splitter cuts the zoo's chain model; ``nodes.bench.contenders.workload`` describes the
directory that every contender reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from nodes.bench.contenders.workload import Workload
from shards.manifest import TensorSpec
from shards.split.split import SplitResult, split
from shards.zoo.chain import chain, chain_cuts, chain_expected

STAGES = 3
IN_FLIGHT = 16
"""Requests that are under way at once where a contender is asked for many together."""


def chain_workload(directory: Path, feature_bytes: int, stages: int = STAGES) -> Workload:
    """Stages that compute next to nothing, with features of exactly `feature_bytes`.

    Written into `directory`, read and checked.
    """
    result = split(
        chain(stages, feature_bytes), name="chain", cuts=chain_cuts(stages), profile=False
    )
    rng = np.random.default_rng(7)
    features = rng.standard_normal((1, feature_bytes // 4), dtype=np.float32)
    expected = chain_expected(features, stages)
    return _write_workload(directory, result, {"features": features}, {"result": expected})


def _write_workload(
    directory: Path,
    result: SplitResult,
    inputs: Mapping[str, np.ndarray],
    expected: Mapping[str, np.ndarray],
) -> Workload:
    """Write the stages of a split as a workload for batch 1.

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
    np.savez(directory / "input.npz", **inputs)  # type: ignore[arg-type]
    np.savez(directory / "expected.npz", **expected)  # type: ignore[arg-type]
    meta = {"v": 1, "kind": manifest.model, "in_flight": IN_FLIGHT, "stages": stages}
    (directory / "meta.json").write_text(json.dumps(meta))
    return Workload.load(directory)
