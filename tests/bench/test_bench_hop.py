"""The price of a hop: right answers, floors in the same round, nothing left behind."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bench.cost.hop import FLOORS, STAGES, HopPlan, chain_workload, measure_hop
from bench.cost.regression import REGRESSION, Attempt, RegressionPlan, misses
from bench.rivals.catalogue import MESH, MESH_BY_UP, contender_class
from bench.rivals.contract import missing_packages
from bench.rivals.networks import build_workload
from bench.rivals.peers_client import Load
from bench.rivals.peers_runner import Entrant, run_client
from bench.rivals.workload import Workload, WrongAnswer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return chain_workload(tmp_path_factory.mktemp("chain"), 4096)


def test_a_wrong_answer_is_never_timed(tiny: Workload) -> None:
    with pytest.raises(WrongAnswer, match="differs"):
        tiny.check({"result": tiny.expected["result"] + 1})


@pytest.mark.benchmark
@pytest.mark.processes
@pytest.mark.integration
def test_the_mesh_and_all_floors_answer_rightly_in_the_same_rounds_and_leave_no_process() -> None:
    before = set(psutil.Process().children(recursive=True))
    floors = [name for name in FLOORS if not missing_packages(contender_class(name).packages)]
    plan = HopPlan([1024], requests=15, rounds=2, warmup=3, floors=floors)
    document = json.loads(json.dumps(measure_hop(plan)))
    assert not set(psutil.Process().children(recursive=True)) - before
    (size,) = document["sizes"]
    assert size["unavailable"] == {}
    names = ["up", "mesh", "mesh_wire", *floors]
    assert size["verified"] == 2 * 15 * len(names)
    assert size["node_restarts"] == 0
    assert [list(row) for row in size["rounds"]] == 2 * [names]
    for floor in floors:
        for own in ("up", "mesh"):
            ratio = document["figures"][f"1024/{own}/end_to_end_p50_over_{floor}"]
            assert ratio["floor"]
            assert 0 < ratio["low"] <= ratio["value"] <= ratio["high"]
    assert document["figures"]["1024/mesh/hop_p50_us"]["value"] > 0


@pytest.mark.benchmark
@pytest.mark.processes
@pytest.mark.integration
@pytest.mark.parametrize(
    ("target", "processes"),
    [
        pytest.param(MESH["fast"], 5, id="fast"),
        # The command, its server, three stages and a fallback node, and the client.
        pytest.param(MESH_BY_UP["fast"], 7, id="by swarm up"),
    ],
)
def test_the_mesh_takes_part_in_the_peer_benchmark(
    target: str, processes: int, tmp_path: Path
) -> None:
    build_workload(tmp_path, "tiny")
    entrant = Entrant("swarm", target, Path(sys.executable))
    load = Load(warmup=2, sequential=5, concurrent=40)
    row = run_client(entrant, tmp_path, load, timeout=60)
    assert row["status"] == "ok", row
    assert row["verified"] == 45
    assert row["processes"] == processes
    assert "stop_reason" not in row


# Runs of the gate on two busy cores: what an undisturbed request took in each of three attempts, in
# ms, through the mesh, through raw JetStream, and in one process.
MEASURED = [
    [(0.831, 1.221, 0.018), (0.84, 1.224, 0.018), (0.741, 1.229, 0.018)],
    [(1.902, 1.464, 0.017), (1.19, 1.315, 0.017), (1.851, 1.356, 0.017)],
    [(0.975, 1.482, 0.018), (0.829, 1.361, 0.018), (1.202, 1.651, 0.018)],
    [(0.776, 1.306, 0.017), (0.733, 1.251, 0.017), (0.676, 1.263, 0.017)],
    [(1.768, 1.888, 0.018), (1.785, 1.855, 0.018), (1.579, 1.709, 0.018)],
    [(0.786, 1.469, 0.017), (1.262, 1.706, 0.017), (1.416, 1.441, 0.017)],
    [(2.049, 1.913, 0.018), (1.565, 1.975, 0.018), (2.119, 1.952, 0.018)],
    [(1.113, 1.414, 0.017), (1.07, 1.658, 0.017), (1.278, 1.744, 0.017)],
    [(2.326, 1.94, 0.019), (1.508, 1.812, 0.018), (1.545, 2.195, 0.018)],
    [(0.76, 1.224, 0.017), (1.103, 1.264, 0.017), (0.708, 1.238, 0.017)],
]
HOP_SLOWER = 0.5  # ms


def attempts(run: list[tuple[float, float, float]], slower: float = 0.0) -> list[Attempt]:
    """The attempts of a run, had each hop of the mesh taken so many ms more."""
    return [Attempt(ours + STAGES * slower, floor, alone) for ours, floor, alone in run]


@pytest.mark.parametrize("run", MEASURED)
def test_the_gate_passes_what_was_measured_and_fails_half_a_millisecond_more_a_hop(
    run: list[tuple[float, float, float]],
) -> None:
    assert misses(attempts(run)) == []
    (line,) = misses(attempts(run, HOP_SLOWER))
    assert "times raw JetStream's" in line


def test_the_gate_takes_the_best_attempt() -> None:
    slow, quick = Attempt(3.0, 1.0, 0.0), Attempt(1.0, 1.0, 0.0)
    assert misses([slow, slow, quick]) == []
    assert misses([slow, slow]) == ["a hop takes 3.00 times raw JetStream's, limit 1.15"]


@pytest.mark.parametrize(("best", "code"), [(1.0, 0), (3.0, 1)])
def test_a_regression_is_an_exit_code(best: float, code: int) -> None:
    row = {"ratio": best, "p50_ratio": 3.5}
    document = {"attempts": [row], "best": best, "limit": 1.15, "seconds": 4.0}
    measured = replace(REGRESSION, measure=lambda plan, progress: document)
    assert measured.run(RegressionPlan()) == code
