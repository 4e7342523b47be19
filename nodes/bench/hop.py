"""`swarm bench hop`: what the mesh adds to a request, per hop, beside what the bus itself adds.

    overhead of a hop = (end to end - compute) / hops

*compute* is the median of the same stages called in one process, in the same round. Hops are
counted as stages: three stages in three processes, a client and a server, for every contender.
The floors are nats-py chains without any envelope, checks, budgets or gossip: core NATS, JetStream
push and JetStream standing pull, both with message id, PubAck and ack.

The mesh takes part twice: as it is on one host, where large features go through shared memory and
a lone request's messages go directly beside the server, and with nothing but the wire (`--no-shm`),
which is what nodes on different hosts do, but for the network between them.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodes.bench.chains import STAGES, chain_workload
from nodes.bench.figures import Figure
from nodes.bench.lineup import MESH, MESH_WIRE, answers, lineup
from nodes.bench.peers.contenders.swarm_mesh import Swarm
from nodes.bench.peers.measure import percentile
from nodes.bench.peers.report import machine

OURS = ("mesh", "mesh_wire")
IN_PROCESS = "inprocess"
FLOORS = ("nats_core", "nats_jetstream", "nats_pull", IN_PROCESS)
SHARES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}
SLICE_BYTES = 256 << 20
"""A slice moves no more than this in features: 8 MB are asked for 32 times, not 150."""
LEAST = 20
"""Requests in a slice, at least."""

Round = dict[str, dict[str, float]]  # contender -> p50, p90, p99 in ms
Progress = Callable[[str], None]


@dataclass(frozen=True)
class HopPlan:
    """What to measure. requests: in one slice, of one contender. floors: names of `FLOORS`."""

    sizes: Sequence[int]
    requests: int = 150
    rounds: int = 5
    delivery: str = "durable"
    floors: Sequence[str] = FLOORS
    warmup: int = 50

    def slice(self, size: int) -> int:
        """Requests of one slice at this feature size in bytes."""
        return min(self.requests, max(LEAST, SLICE_BYTES // size))


def measure_hop(plan: HopPlan, progress: Progress = lambda _: None) -> dict[str, Any]:
    """The document of `swarm bench hop`. Raises `WrongAnswer`, or what a start raises."""
    sizes = []
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory(prefix="hop-") as root:
        for size in plan.sizes:
            rounds, rest = _rounds(plan, size, _targets(plan, size), Path(root), progress)
            found = summarise(rounds, STAGES)
            figures |= {f"{size}/{name}": figure for name, figure in found.items()}
            sizes.append(
                {
                    "bytes": size,
                    "requests": plan.slice(size),
                    "rounds": rounds,
                    **rest,
                }
            )
    return {
        "v": 1,
        "bench": "hop",
        "machine": machine(),
        "delivery": plan.delivery,
        "hops": STAGES,
        "sizes": sizes,
        "figures": {name: figure.as_doc() for name, figure in figures.items()},
    }


def _targets(plan: HopPlan, size: int) -> dict[str, str]:
    """Who takes part at this size: name -> contender."""
    ours = {"mesh": MESH[plan.delivery], "mesh_wire": MESH_WIRE[plan.delivery]}
    return ours | {name: name for name in (*plan.floors, IN_PROCESS)}


def _rounds(
    plan: HopPlan, size: int, targets: Mapping[str, str], root: Path, progress: Progress
) -> tuple[list[Round], dict[str, Any]]:
    """One size's rounds, and what else is to be known of them: who could not take part and why,
    how many answers were compared, and whether features went through shared memory."""
    workload = chain_workload(root / str(size), size)
    requests = plan.slice(size)
    rounds: list[Round] = []
    verified = 0
    with lineup(workload, targets) as (running, absent):
        for contender in running.values():
            answers(contender, workload, min(plan.warmup, requests))
        for number in range(1, plan.rounds + 1):
            progress(f"{size} bytes, round {number} of {plan.rounds}")
            row: Round = {name: {} for name in running}
            names = list(running)
            first = number % len(names)  # nobody is always behind the same one
            for name in names[first:] + names[:first]:
                latencies = answers(running[name], workload, requests)
                verified += len(latencies)
                row[name] = {k: 1e3 * percentile(latencies, q) for k, q in SHARES.items()}
            rounds.append(row)
        mesh = running.get("mesh")
        rest: dict[str, Any] = {"unavailable": absent, "verified": verified}
        if isinstance(mesh, Swarm):
            rest |= {"shared_memory": mesh.lent > 0, "node_restarts": mesh.restarts}
    return rounds, rest


def summarise(rounds: Sequence[Round], hops: int) -> dict[str, Figure]:
    """Figures of one size: overhead per hop in microseconds, and the mesh's ratio to each other
    contender, with and without shared memory.

    Ratios are taken within a round, then their median: rounds differ more than contenders do.
    A floor's overhead that is not above zero (noise) gives no ratio of hops.
    """
    figures: dict[str, Figure] = {}
    names = list(rounds[0])
    for name in names:
        for key in SHARES:
            total = [row[name][key] for row in rounds]
            figures[f"{name}/end_to_end_{key}_ms"] = Figure.of(total, "ms")
            if name != IN_PROCESS:
                hop = [1e3 * _hop(row, name, key, hops) for row in rounds]
                figures[f"{name}/hop_{key}_us"] = Figure.of(hop, "us")
    for own, floor in itertools.product(OURS, names):
        if own not in names or floor in (own, "mesh"):
            continue
        theirs = floor not in OURS  # beside ourselves is no floor
        for key in SHARES:
            ratios = [row[own][key] / row[floor][key] for row in rounds]
            figures[f"{own}/end_to_end_{key}_over_{floor}"] = Figure.of(ratios, "x", floor=theirs)
            pairs = [(_hop(row, own, key, hops), _hop(row, floor, key, hops)) for row in rounds]
            if floor != IN_PROCESS and all(least > 0 for _, least in pairs):
                ratios = [ours / least for ours, least in pairs]
                figures[f"{own}/hop_{key}_over_{floor}"] = Figure.of(ratios, "x", floor=theirs)
    return figures


def _hop(row: Round, name: str, key: str, hops: int) -> float:
    """Overhead of one hop in milliseconds."""
    return (row[name][key] - row[IN_PROCESS]["p50"]) / hops


def run_hop(
    sizes: Sequence[int],
    requests: int = 150,
    rounds: int = 5,
    delivery: str = "durable",
    as_json: bool = False,
    chart: str = "",
    output: str = "",
) -> int:
    """The command: measure, print, draw. Returns the exit code.

    sizes: feature bytes. delivery: `durable` or `core`. chart: an image file; output: a JSON file
    for `swarm bench compare`.
    """
    from nodes.bench.hop_report import draw, show
    from nodes.bench.present import present

    plan = HopPlan(sizes, requests, rounds, delivery)
    return present(lambda progress: measure_hop(plan, progress), show, draw, as_json, chart, output)
