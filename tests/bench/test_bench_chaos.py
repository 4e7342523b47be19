"""`swarm bench chaos`: its faults come from the seed alone, its verdicts from the records, and ten
seconds of it on real processes lose nothing."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.faults.chaos import failures
from bench.faults.chaos_schedule import LONGEST_STOP, SHORTEST_STOP, Kind, schedule


@given(st.integers(), st.floats(0.1, 10), st.integers(1, 9))
def test_a_seed_draws_the_same_faults_each_time_and_only_faults_of_the_rule(
    seed: int, every: float, victims: int
) -> None:
    faults = schedule(seed, 20.0, every, victims)
    assert faults == schedule(seed, 20.0, every, victims)
    assert len(faults) == int(20.0 / every)
    for number, fault in enumerate(faults, 1):
        assert fault.at == number * every <= 20.0
        assert 0 <= fault.victim < victims
        if fault.kind is Kind.STOP:
            assert SHORTEST_STOP <= fault.stopped <= LONGEST_STOP
        else:
            assert fault.stopped == 0.0


def test_a_run_fails_for_a_wrong_answer_a_lost_request_or_too_few_answers() -> None:
    good = {"wrong": 0, "lost": 0, "answered_share": 0.96}
    assert failures(good, at_least=0.95) == []
    for name, value in (("wrong", 1), ("lost", 1), ("answered_share", 0.94)):
        assert len(failures(good | {name: value}, at_least=0.95)) == 1


@pytest.mark.benchmark
@pytest.mark.slow
@pytest.mark.processes
def test_ten_seconds_of_chaos_give_no_wrong_answer_and_lose_no_request() -> None:
    """A fault each 1.5 s, one node a stage and a fallback. How much is answered is a figure."""
    arguments = ["bench", "chaos", "--seed", "4", "--seconds", "10", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "nodes.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    doc = json.loads(done.stdout)
    assert doc["passed"]
    assert doc["requests"] == 600
    assert doc["answered"] > 0
    assert doc["faults_fallen"] > 0
