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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from zoo.chain import chain, chain_cuts, chain_expected

from bench.cost.sizes import size_text
from bench.report.charts import new_chart, save_chart
from bench.report.figure import Figure, percentile
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import new_table
from bench.rivals.catalogue import MESH, MESH_BY_UP, MESH_BY_WIRE
from bench.rivals.side_by_side import checked_latencies, side_by_side
from bench.rivals.systems.mesh_client import MeshContender
from bench.rivals.systems.swarm_mesh import Swarm
from bench.rivals.workload import Workload, write_split
from nodes.console import out
from shards.split.split import split

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


OURS = ("up", "mesh", "mesh_wire")
"""The mesh as a user runs it, on one host, and with every message through the server."""
IN_PROCESS = "inprocess"
FLOORS = ("nats_core", "nats_jetstream", "pyzmq", "zenoh", IN_PROCESS)
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


def measure_hop(plan: HopPlan, progress: Progress = lambda _: None) -> dict[str, Any]:
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
    progress: Progress,
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
        for number, name in by_turns(plan.rounds, list(running)):
            progress(f"{size} bytes, round {number} of {plan.rounds}: {name}")
            if number > len(rounds):
                rounds.append({name: {} for name in running})
            latencies = checked_latencies(running[name], workload, requests)
            verified += len(latencies)
            rounds[-1][name] = {k: 1e3 * percentile(latencies, q) for k, q in PERCENTILES.items()}
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


LABELS = {
    "up": "swarm up",
    "mesh": "mesh",
    "mesh_wire": "mesh, wire",
    "nats_core": "raw core",
    "nats_jetstream": "raw JetStream",
    "pyzmq": "pyzmq",
    "zenoh": "Zenoh",
    IN_PROCESS: "one process",
}
RATIO_HEADINGS = {"up": "up", "mesh": "mesh", "mesh_wire": "wire"}


def figures_of(document: dict[str, Any]) -> dict[str, Figure]:
    """The document's figures by name."""
    return {name: Figure.from_doc(doc) for name, doc in document["figures"].items()}


def contenders(document: dict[str, Any], size: int) -> list[str]:
    """The names of the contenders that were measured at this size, the mesh first."""
    (entry,) = [entry for entry in document["sizes"] if entry["bytes"] == size]
    return list(entry["rounds"][0])


def show(document: dict[str, Any]) -> None:
    """One table for each feature size: a row per contender."""
    figures = figures_of(document)
    out.print(f"Overhead per hop in ms, {document['hops']} stages, {document['delivery']} delivery")
    for entry in document["sizes"]:
        size = entry["bytes"]
        title = f"features of {size_text(size)}"
        if entry.get("shared_memory"):
            title += ", the mesh's through shared memory"
        names = contenders(document, size)
        ours = [name for name in OURS if name in names]
        # On 80 columns two ratios leave no room for the p90, which the document has.
        shares = ("p50", "p90", "p99") if len(ours) == 1 else ("p50", "p99")
        headings = ["p50 (rounds)", *shares[1:], *(f"{RATIO_HEADINGS[own]}/this" for own in ours)]
        table = new_table(title, "contender", *headings)
        for name in names:
            hops = [figures.get(f"{size}/{name}/hop_{share}_us") for share in shares]
            ratios = [
                figures.get(f"{size}/{own}/hop_p50_over_{name}")
                or figures.get(f"{size}/{own}/end_to_end_p50_over_{name}")
                for own in ours
            ]
            cells = ["-" if hop is None else f"{hop.value / 1e3:.3g}" for hop in hops]
            if hops[0] is not None:
                cells[0] += f" ({hops[0].low / 1e3:.3g}-{hops[0].high / 1e3:.3g})"
            texts = ["" if ratio is None else str(ratio) for ratio in ratios]
            cells += [texts[0], *(text.partition(" ")[0] for text in texts[1:])]
            table.add_row(LABELS.get(name, name), *cells)
        for name, reason in entry["unavailable"].items():
            table.add_row(LABELS.get(name, name), reason)
        out.print(table)
        if entry.get("node_restarts"):
            out.print(f"[bold red]{entry['node_restarts']} node processes ended[/]: measure again")
    total = sum(entry["verified"] for entry in document["sizes"])
    out.print(
        f"{total} answers, each compared with the expected one. Ratios are of the overhead per "
        "hop (of the whole request for `one process`), taken within a round."
    )


def draw(document: dict[str, Any], path: Path) -> None:
    """Overhead per hop over feature size, both logarithmic; the bars span the rounds."""
    figures = figures_of(document)
    sizes = [entry["bytes"] for entry in document["sizes"]]
    figure, plot = new_chart("overhead per hop (p50)", "bytes of features", "microseconds")
    for name, label in LABELS.items():
        points = [(s, figures.get(f"{s}/{name}/hop_p50_us")) for s in sizes]
        known = [(s, f) for s, f in points if f is not None and f.value > 0]
        if not known:
            continue
        values = [f.value for _, f in known]
        below = [max(0.0, f.value - max(f.low, 1.0)) for _, f in known]
        above = [f.high - f.value for _, f in known]
        plot.errorbar(
            [s for s, _ in known], values, yerr=[below, above], label=label, marker="o", capsize=3
        )
    plot.set_xscale("log", base=2)
    plot.set_yscale("log")
    save_chart(figure, plot, path)


HOP = Benchmark("hop", measure_hop, show, draw)
