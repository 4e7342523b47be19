"""`swarm bench memory`: how memory is read, what it is counted for, and the real mesh."""

from __future__ import annotations

import json

import pytest

from bench.cost.memory import MEMORY, MemoryPlan
from bench.cost.memory_parts import (
    KINDS,
    WEIGHTS,
)


@pytest.mark.benchmark
@pytest.mark.processes
def test_a_mesh_as_a_user_starts_it_is_measured_process_by_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert MEMORY.run(MemoryPlan("digits", 2, 3), as_json=True) == 0
    document = json.loads(capsys.readouterr().out)
    roles = [row["role"] for row in document["processes"]]
    assert sorted(roles) == ["fallback", "server", "shard-1", "shard-2", "up"]
    for row in document["processes"]:
        assert row["resident"] >= row["proportional"] > 5e6
        assert set(row["parts"]) == set(KINDS)
        # Weights are mapped by nodes, and by nobody else.
        is_node = row["role"] not in ("up", "server")
        assert (row["parts"][WEIGHTS]["resident"] > 0) == is_node
    assert document["total"]["resident"] == sum(r["resident"] for r in document["processes"])


@pytest.mark.benchmark
def test_a_model_that_is_no_file_is_refused_with_the_meshs_own_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert MEMORY.run(MemoryPlan("/nowhere/model.onnx", start_timeout=30), as_json=True) == 1
    assert "no such file" in json.loads(capsys.readouterr().out)["error"]
