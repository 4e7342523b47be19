"""What the mesh adds to a request, per hop, beside what the bus itself adds.

    overhead of a hop = (end to end - compute) / hops

*compute* is the median of the same stages called in one process, in the same round. A request has
as many hops as the chain has stages: three stages in three processes, a client and a server, for
every contender. Three floors are nats-py chains without any envelope, checks, budgets or gossip:
core NATS, JetStream push and JetStream standing pull. Both JetStream floors use message ids,
PubAcks and acks. pyzmq and Zenoh take part where they are installed.

The mesh takes part three times. `up` is the mesh as a user runs it: `swarm up` cuts the chain and
starts the nodes, a fallback node among them, and the client is a `swarm.connect`. `mesh` is the
mesh on one host, without a fallback node and with a client on uvloop: large features go through
shared memory, and messages are handed over by sockets beside the server. `mesh_wire` (`--no-shm`)
sends everything through the server, as nodes on different hosts do, only without a network between
them.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cost.hop.chain_workload import STAGES, chain_workload
from bench.report.figure import Figure, percentile
from bench.report.machine import machine
from bench.rivals.catalogue import MESH, MESH_BY_UP, MESH_BY_WIRE
from bench.rivals.side_by_side import checked_latencies, side_by_side
from bench.rivals.systems.mesh_client import MeshContender
from bench.rivals.systems.swarm_mesh import Swarm

OURS = ("up", "mesh", "mesh_wire")
"""The mesh as a user runs it, on one host, and with every message through the server."""
IN_PROCESS = "inprocess"
FLOORS = ("nats_core", "nats_jetstream", "nats_pull", "pyzmq", "zenoh", IN_PROCESS)
PERCENTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99}
MOST_SLICE_BYTES = 256 << 20
"""Features that a slice moves at most: with 8 MB, 32 requests instead of 150."""
LEAST_REQUESTS = 20
"""Requests in a slice, at least."""

Round = dict[str, dict[str, float]]  # contender -> p50, p90, p99 in ms


@dataclass(frozen=True)
class HopPlan:
    """What to measure.

    sizes: feature bytes. requests: of one contender in one slice. delivery: `durable` or `fast`.
    ours: names of `OURS`. floors: names of `FLOORS`. warmup: requests of each contender before the
    first round.
    """

    sizes: Sequence[int]
    requests: int = 150
    rounds: int = 5
    delivery: str = "durable"
    floors: Sequence[str] = FLOORS
    ours: Sequence[str] = OURS
    warmup: int = 50

    def requests_a_slice(self, size: int) -> int:
        """Requests of one slice at this feature size in bytes."""
        return min(self.requests, max(LEAST_REQUESTS, MOST_SLICE_BYTES // size))


def measure_hop(plan: HopPlan, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """The document of `swarm bench hop`. Raises `WrongAnswer`, or the error of a start."""
    sizes = []
    figures: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory(prefix="hop-") as root:
        for size in plan.sizes:
            rounds, entries = rounds_of(plan, size, _targets(plan), Path(root), progress)
            found = summarise(rounds, STAGES)
            figures |= {f"{size}/{name}": figure for name, figure in found.items()}
            sizes.append(
                {
                    "bytes": size,
                    "requests": plan.requests_a_slice(size),
                    "rounds": rounds,
                    **entries,
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


def _targets(plan: HopPlan) -> dict[str, str]:
    """The contenders: name -> target."""
    ways = {"up": MESH_BY_UP, "mesh": MESH, "mesh_wire": MESH_BY_WIRE}
    ours = {name: ways[name][plan.delivery] for name in plan.ours}
    return ours | {name: name for name in (*plan.floors, IN_PROCESS)}


def rounds_of(
    plan: HopPlan,
    size: int,
    targets: Mapping[str, str],
    root: Path,
    progress: Callable[[str], None],
) -> tuple[list[Round], dict[str, Any]]:
    """The rounds of one feature size, and the document's other entries: which contenders could not
    take part and why, how many answers were compared, whether features went through shared memory,
    and how many nodes ended."""
    workload = chain_workload(root / str(size), size)
    requests = plan.requests_a_slice(size)
    rounds: list[Round] = []
    verified = 0
    with side_by_side(workload, targets) as (running, absent):
        for contender in running.values():
            checked_latencies(contender, workload, min(plan.warmup, requests))
        for number in range(1, plan.rounds + 1):
            progress(f"{size} bytes, round {number} of {plan.rounds}")
            row: Round = {name: {} for name in running}
            names = list(running)
            first = number % len(names)  # no contender always follows the same one
            for name in names[first:] + names[:first]:
                latencies = checked_latencies(running[name], workload, requests)
                verified += len(latencies)
                row[name] = {k: 1e3 * percentile(latencies, q) for k, q in PERCENTILES.items()}
            rounds.append(row)
        meshes = [found for found in running.values() if isinstance(found, MeshContender)]
        entries: dict[str, Any] = {
            "unavailable": absent,
            "verified": verified,
            "node_restarts": sum(found.restarts for found in meshes),
            "shared_memory": any(isinstance(found, Swarm) and found.lent > 0 for found in meshes),
        }
    return rounds, entries


def summarise(rounds: Sequence[Round], hops: int) -> dict[str, Figure]:
    """Figures of one feature size: each contender's times, its overhead per hop in microseconds,
    and the ratios of each of `OURS` to each floor and to those of `OURS` that follow it.

    A ratio is taken within each round, since rounds differ more than contenders do; the figure is
    the median of these. A floor whose overhead is not above zero (noise) gives no ratio of hops.
    """
    figures: dict[str, Figure] = {}
    names = list(rounds[0])
    for name in names:
        for key in PERCENTILES:
            total = [row[name][key] for row in rounds]
            figures[f"{name}/end_to_end_{key}_ms"] = Figure.of(total, "ms")
            if name != IN_PROCESS:
                hop = [1e3 * hop_ms(row, name, key, hops) for row in rounds]
                figures[f"{name}/hop_{key}_us"] = Figure.of(hop, "us")
    for own, floor in itertools.product(OURS, names):
        is_floor = floor not in OURS
        if own not in names or not (is_floor or OURS.index(own) < OURS.index(floor)):
            continue
        for key in PERCENTILES:
            ratios = [row[own][key] / row[floor][key] for row in rounds]
            figures[f"{own}/end_to_end_{key}_over_{floor}"] = Figure.of(ratios, "x", floor=is_floor)
            pairs = [(hop_ms(row, own, key, hops), hop_ms(row, floor, key, hops)) for row in rounds]
            if floor != IN_PROCESS and all(least > 0 for _, least in pairs):
                ratios = [ours / least for ours, least in pairs]
                figures[f"{own}/hop_{key}_over_{floor}"] = Figure.of(ratios, "x", floor=is_floor)
    return figures


def hop_ms(row: Round, name: str, key: str, hops: int) -> float:
    """Overhead of one hop in milliseconds."""
    return (row[name][key] - row[IN_PROCESS]["p50"]) / hops
