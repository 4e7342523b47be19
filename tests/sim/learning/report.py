"""What learning without a server achieves, simulated, beside a parameter server and central
training of the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sim.learning.task import (
    SIZE,
    Trainer,
    accuracy,
    held_out_samples,
    split_by_label,
    training_samples,
)
from sim.learning.world import ENVELOPE, RATE, Fleet, LearningWorld

Row = dict[str, Any]

MEAN_BELOW_CENTRAL, WORST_BELOW_CENTRAL, ATTACKED_BELOW_CENTRAL = 0.01, 0.03, 0.02
MOST_OF_FULL_GOSSIP = 0.25
COMPLETE_UP_TO = 32  # nodes of a complete graph that is simulated: its links grow by the square
ROUNDS = 1500


def play(fleet: Fleet, name: str, central: float) -> Row:
    """One situation's figures. Bytes are of one node on average."""
    rng = np.random.default_rng(fleet.seed)
    parts = split_by_label(training_samples(), fleet.nodes, rng)
    world = LearningWorld(fleet, parts, training_samples())
    world.run()
    held_out = held_out_samples()
    accuracies = world.accuracies(held_out)
    sent, received = world.bytes_a_seat()
    return {
        "scenario": name,
        "nodes": fleet.nodes,
        "graph": fleet.graph,
        "mean": round(float(np.mean(accuracies)), 4),
        "worst": round(min(accuracies), 4),
        "central": round(central, 4),
        "sent_kb": round(sent / 1e3),
        "received_kb": round(received / 1e3),
        "distance": round(world.consensus_distance(), 3),
        "steps_halved": sum(m.choco.guard.halved for m in world.honest()),
    }


def central_accuracy(rounds: int, seed: int) -> float:
    """Of as many steps on all samples at one place."""
    x = np.zeros(SIZE, np.float32)
    trainer = Trainer(training_samples(), RATE, rounds, seed)
    for _ in range(rounds):
        x += trainer.update(x)
    return accuracy(x, held_out_samples())


def parameter_server(nodes: int, rounds: int, central: float, seed: int) -> Row:
    """FedAvg (McMahan et al., arXiv 1602.05629) with one local step a round and all nodes in each:
    what Flower's strategy of that name sends, without its framing. A node sends its parameters and
    gets the mean; the server carries all of it."""
    parts = split_by_label(training_samples(), nodes, np.random.default_rng(seed))
    trainers = [Trainer(part, RATE, rounds, seed * 1000 + n) for n, part in enumerate(parts)]
    x = np.zeros(SIZE, np.float32)
    weights = np.array([len(part) for part in parts]) / sum(map(len, parts))
    for _ in range(rounds):
        updates = np.array([trainer.update(x) for trainer in trainers])
        x = x + np.average(updates, axis=0, weights=weights).astype(np.float32)
    found = accuracy(x, held_out_samples())
    one_way = (4 * SIZE + ENVELOPE) * rounds / 1e3
    return {
        "scenario": "parameter server",
        "nodes": nodes,
        "graph": "star",
        "mean": round(found, 4),
        "worst": round(found, 4),
        "central": round(central, 4),
        "sent_kb": round(one_way),
        "received_kb": round(one_way),
        "server_kb": round(2 * nodes * one_way),
        "distance": 0.0,
    }


def alone(nodes: int, rounds: int, central: float, seed: int) -> Row:
    """Each node with its own samples only."""
    held_out, found = held_out_samples(), []
    parts = split_by_label(training_samples(), nodes, np.random.default_rng(seed))
    for number, part in enumerate(parts):
        x = np.zeros(SIZE, np.float32)
        trainer = Trainer(part, RATE, rounds, seed * 1000 + number)
        for _ in range(rounds):
            x += trainer.update(x)
        found.append(accuracy(x, held_out))
    return {
        "scenario": "each alone",
        "nodes": nodes,
        "graph": "none",
        "mean": round(float(np.mean(found)), 4),
        "worst": round(min(found), 4),
        "central": round(central, 4),
        "sent_kb": 0,
        "received_kb": 0,
    }


def run_report(
    *,
    sizes: Sequence[int] = (32,),
    rounds: int = ROUNDS,
    seed: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """All situations of eight nodes, and the quiet ones of larger fleets, as JSON-able rows."""
    central = central_accuracy(rounds, seed)
    rows: list[Row] = []

    def add(name: str, fleet: Fleet) -> Row:
        progress(f"{name}, {fleet.nodes} nodes, {fleet.graph} …")
        rows.append(play(fleet, name, central))
        return rows[-1]

    eight = Fleet(8, rounds=rounds, seed=seed)
    rows.append(alone(8, rounds, central, seed))
    full = add("full gossip", replace(eight, share=1.0, half=False))
    for graph in ("ring", "random", "complete"):
        judge_quiet(add("sparse", replace(eight, graph=graph)), full)
    judge_quiet(add("5 % lost", replace(eight, loss=0.05)), None)
    judge_quiet(add("1 replaced per 150 rounds", replace(eight, churn=150)), None)
    # Without a target: who makes a third of the steps teaches less of its classes.
    add("a third at a third of the pace", replace(eight, slow=0.34))
    for attack in ("noise", "flip"):
        hurt = replace(eight, attack=attack, attackers=1)
        add(f"a ninth sends {attack}, trusted", hurt)
        judge_attacked(add(f"a ninth sends {attack}, doubted", replace(hurt, hostile=0.25)))
    rows.append(parameter_server(8, rounds, central, seed))
    for nodes in sizes:
        large = Fleet(nodes, rounds=rounds, seed=seed)
        for graph in ("ring", "random", *(("complete",) if nodes <= COMPLETE_UP_TO else ())):
            add("sparse", replace(large, graph=graph))
        add("5 % lost, 1 replaced per 50 rounds", replace(large, loss=0.05, churn=50))
        rows.append(parameter_server(nodes, rounds, central, seed))
    return {
        "seed": seed,
        "rounds": rounds,
        "central": round(central, 4),
        "rows": rows,
        "met": all(row.get("met", True) for row in rows),
    }


def judge_quiet(row: Row, full: Row | None) -> None:
    """Targets of a fleet of honest nodes; full: the row of full gossip on the same number."""
    row["target"] = f"mean >= central - {MEAN_BELOW_CENTRAL}, worst >= - {WORST_BELOW_CENTRAL}"
    row["met"] = (
        row["mean"] >= row["central"] - MEAN_BELOW_CENTRAL
        and row["worst"] >= row["central"] - WORST_BELOW_CENTRAL
    )
    if full is not None:
        row["target"] += f", sent <= {MOST_OF_FULL_GOSSIP} of full gossip"
        row["met"] = row["met"] and row["sent_kb"] <= MOST_OF_FULL_GOSSIP * full["sent_kb"]


def judge_attacked(row: Row) -> None:
    """Targets of honest nodes beside a hostile one."""
    row["target"] = f"worst >= central - {ATTACKED_BELOW_CENTRAL}"
    row["met"] = row["worst"] >= row["central"] - ATTACKED_BELOW_CENTRAL
