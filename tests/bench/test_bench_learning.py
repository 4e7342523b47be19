"""The simulated fleet that learns: repeatable, contained attacks, bytes beside a server's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from sim.learning_report import play, run_report
from sim.learning_task import split_by_label, training_samples
from sim.learning_world import Fleet
from typer.testing import CliRunner

from nodes.cli.main import app

SHORT = Fleet(8, rounds=150)


def test_a_node_has_two_shards_of_label_sorted_samples_and_each_sample_has_one_node() -> None:
    samples = training_samples()
    parts = split_by_label(samples, 8, np.random.default_rng(1))
    assert sum(map(len, parts)) == len(samples)
    assert all(len(np.unique(part.labels)) <= 4 for part in parts)


def test_one_seed_is_one_run_in_any_process() -> None:
    code = (
        "from sim.learning_report import play; "
        "from sim.learning_world import Fleet; "
        "print(play(Fleet(8, rounds=60, loss=0.1, churn=20), '', 0.0))"
    )
    shown = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert "mean" in shown[0]
    assert shown[0] == shown[1]


def test_nodes_learn_from_each_other_what_none_has_samples_of() -> None:
    row = play(SHORT, "sparse", 0.0)
    assert row["worst"] > 0.7  # alone, with two or three classes, a node reaches 0.3


def test_sparse_deltas_take_a_quarter_of_what_whole_vectors_take() -> None:
    sparse, whole = (play(f, "", 0.0) for f in (SHORT, replace(SHORT, share=1.0, half=False)))
    assert 0 < sparse["sent_kb"] <= 0.25 * whole["sent_kb"]


@pytest.mark.parametrize("attack", ["noise", "flip"])
def test_a_hostile_neighbour_does_harm_unless_it_is_doubted(attack: str) -> None:
    hurt = replace(SHORT, attack=attack, attackers=1)
    trusted, doubted = (play(f, "", 0.0)["mean"] for f in (hurt, replace(hurt, hostile=0.25)))
    quiet = play(SHORT, "", 0.0)["mean"]
    assert doubted > quiet - 0.05
    assert trusted < doubted - 0.2


def test_losses_show_as_snapshots_and_not_as_harm() -> None:
    quiet, lossy = (play(f, "", 0.0) for f in (SHORT, replace(SHORT, loss=0.1)))
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
