"""The simulated fleet that learns: repeatable, contained attacks, bytes beside a server's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from typing import Any

import msgpack
import numpy as np
import pytest
from sim.learning.report import play, run_report
from sim.learning.task import split_by_label, training_samples
from sim.learning.world import Fleet
from typer.testing import CliRunner

from bench.hostile.campaign import TARGETS
from bench.hostile.slices import replay
from nodes.cli.main import app

SHORT = Fleet(8, rounds=150)


@cache
def played(fleet: Fleet) -> dict[str, Any]:
    return play(fleet, "", 0.0)


def test_a_node_has_two_shards_of_label_sorted_samples_and_each_sample_has_one_node() -> None:
    samples = training_samples()
    parts = split_by_label(samples, 8, np.random.default_rng(1))
    assert sum(map(len, parts)) == len(samples)
    assert all(len(np.unique(part.labels)) <= 4 for part in parts)


def test_one_seed_is_one_run_in_any_process() -> None:
    code = (
        "from sim.learning.report import play; from sim.learning.world import Fleet; "
        "print(play(Fleet(8, rounds=60, loss=0.1, churn=20), '', 0.0))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONHASHSEED": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert shown.strip() == str(play(Fleet(8, rounds=60, loss=0.1, churn=20), "", 0.0))


def test_nodes_learn_from_each_other_what_none_has_samples_of() -> None:
    row = played(SHORT)
    assert row["worst"] > 0.7  # alone, with two or three classes, a node reaches 0.3


def test_sparse_deltas_take_a_quarter_of_what_whole_vectors_take() -> None:
    sparse, whole = (played(f) for f in (SHORT, replace(SHORT, share=1.0, half=False)))
    assert 0 < sparse["sent_kb"] <= 0.25 * whole["sent_kb"]


@pytest.mark.parametrize("attack", ["noise", "flip"])
def test_a_hostile_neighbour_does_harm_unless_it_is_doubted(attack: str) -> None:
    hurt = replace(SHORT, attack=attack, attackers=1)
    trusted, doubted = (played(f)["mean"] for f in (hurt, replace(hurt, hostile=0.25)))
    quiet = played(SHORT)["mean"]
    assert doubted > quiet - 0.05
    assert trusted < doubted - 0.2


def test_losses_show_as_snapshots_and_not_as_harm() -> None:
    quiet, lossy = (played(f) for f in (SHORT, replace(SHORT, loss=0.1)))
    assert lossy["sent_kb"] > quiet["sent_kb"]
    assert lossy["mean"] > quiet["mean"] - 0.05


def test_a_report_has_all_situations_beside_a_parameter_server() -> None:
    report = run_report(sizes=(), rounds=30)
    names = [row["scenario"] for row in report["rows"]]
    assert {"each alone", "full gossip", "sparse", "5 % lost", "parameter server"} <= set(names)
    assert report["met"] is False  # after thirty rounds nobody has learned enough
    json.dumps(report)


def test_the_command_says_how_it_is_used() -> None:
    shown = CliRunner().invoke(app, ["bench", "learning", "--help"])
    assert shown.exit_code == 0
    assert "--full" in shown.output


def stored(**fields: Any) -> bytes:
    """A ledger with one record, in which some fields are others."""
    digest = "ab" * 32
    record = {
        "n": 1,
        "parent": digest,
        "base": digest,
        "epoch": 0,
        "tensors": {},
        "stored": "",
        "by": "a",
        "at": 1.0,
        "accuracy": None,
        "samples": 0,
        "taught": [],
        "restores": None,
        "key": "",
        "signature": "",
    }
    return json.dumps({"v": 1, "base": digest, "records": [record | fields]}).encode()


def delta(**fields: Any) -> bytes:
    """A delta with a valid signature."""
    with ExitStack() as stack:
        case = TARGETS["deltas"].open(stack)
        assert case.wrap is not None
        return case.wrap(msgpack.packb(msgpack.unpackb(case.seeds[0]) | fields))


@pytest.mark.parametrize(
    ("target", "made"),
    [
        pytest.param("ledger", lambda: stored(at=10**400), id="a moment that no float can hold"),
        pytest.param("deltas", lambda: delta(t={"delta": 1}), id="a kind that is a map"),
    ],
)
def test_a_message_that_broke_a_parser_once_is_refused_as_any_other(
    target: str, made: Callable[[], bytes]
) -> None:
    result = replay(TARGETS[target], made())
    assert not result.findings, result.findings
