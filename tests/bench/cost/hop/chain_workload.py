"""The workload of `swarm bench hop`: a chain of stages with features of a chosen size.

Our own splitter cuts the zoo's chain model; ``bench.rivals.workload`` describes the
directory that every contender reads.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bench.rivals.split_workload import write_split
from bench.rivals.workload import Workload
from shards.split.split import split
from shards.zoo.chain import chain, chain_cuts, chain_expected

STAGES = 3
IN_FLIGHT = 16
"""Requests that are under way at once where a contender is asked for many together."""


def chain_workload(directory: Path, feature_bytes: int, stages: int = STAGES) -> Workload:
    """Stages that compute next to nothing, with features of exactly `feature_bytes`.

    Written into `directory`, read and checked.
    """
    model = chain(stages, feature_bytes)
    result = split(model, name="chain", cuts=chain_cuts(stages), profile=False)
    rng = np.random.default_rng(7)
    features = rng.standard_normal((1, feature_bytes // 4), dtype=np.float32)
    expected = chain_expected(features, stages)
    return write_split(
        directory, model, result, {"features": features}, {"result": expected}, IN_FLIGHT
    )
