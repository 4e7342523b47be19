"""`swarm bench hop --trust`: what users, TLS and encryption at rest cost a hop, by turns.

Each group is up at the same time and is measured in turn, and a ratio is taken within a round. On
one host messages do not go through the server, so nothing of this is in their way.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

from bench.cost.hop import IN_PROCESS, STAGES, HopPlan, hop_ms, rounds_of
from bench.cost.sizes import size_text
from bench.report.figure import Figure
from bench.report.frame import Benchmark, Progress
from bench.report.tables import new_table
from bench.rivals.catalogue import MESH, MESH_BY_WIRE, MESH_WITH_TRUST
from nodes.console import out

GROUPS = (
    {"host": MESH["durable"], "host_secured": MESH_WITH_TRUST["host_secured"]},
    {
        "wire": MESH_BY_WIRE["durable"],
        "wire_users": MESH_WITH_TRUST["wire_users"],
        "wire_tls": MESH_WITH_TRUST["wire_tls"],
    },
    {
        "wire_file": MESH_WITH_TRUST["wire_file"],
        "wire_file_encrypted": MESH_WITH_TRUST["wire_file_encrypted"],
    },
)
"""The first of each group is the open one, which the others are compared with."""
LABELS = {
    "host": "one host, open",
    "host_secured": "  users, TLS, encrypted store",
    "wire": "by the server, open",
    "wire_users": "  users",
    "wire_tls": "  users and TLS 1.3",
    "wire_file": "by lanes in files, plain",
    "wire_file_encrypted": "  encrypted (AES)",
}


def measure_trust(plan: HopPlan, progress: Progress) -> dict[str, Any]:
    """The document: figures `SIZE/NAME/hop_p50_us`, and `…/hop_p50_ratio` to the open one of its
    group. Raises `WrongAnswer`, or the error of a start."""
    figures: dict[str, Figure] = {}
    verified = restarts = 0
    with tempfile.TemporaryDirectory(prefix="hop-trust-") as root:
        for size in plan.sizes:
            for number, group in enumerate(GROUPS):
                targets = group | {IN_PROCESS: IN_PROCESS}
                folder = Path(root) / str(number)
                folder.mkdir(exist_ok=True)
                rounds, entries = rounds_of(plan, size, targets, folder, progress)
                verified += entries["verified"]
                restarts += entries["node_restarts"]
                opened = next(iter(group))
                for name in group:
                    hops = [hop_ms(row, name, "p50", STAGES) for row in rounds]
                    floors = [hop_ms(row, opened, "p50", STAGES) for row in rounds]
                    key = f"{size}/{name}/hop_p50"
                    figures[f"{key}_us"] = Figure.of([1e3 * hop for hop in hops], "us")
                    if name != opened and min(floors) > 0:
                        ratios = [h / f for h, f in zip(hops, floors, strict=True)]
                        figures[f"{key}_ratio"] = Figure.of(ratios, "x")
    return {
        "hops": STAGES,
        "sizes": list(plan.sizes),
        "verified": verified,
        "node_restarts": restarts,
        "figures": {name: figure.as_doc() for name, figure in figures.items()},
    }


def show_trust(document: dict[str, Any]) -> None:
    """A row for each way, two columns for each size."""
    figures = {name: Figure.from_doc(doc) for name, doc in document["figures"].items()}
    pairs = [(f"{size_text(size)}: us", "x open") for size in document["sizes"]]
    table = new_table("overhead of a hop, p50", "way", *itertools.chain(*pairs))
    for name, label in LABELS.items():
        cells = [label]
        for size in document["sizes"]:
            ratio = figures.get(f"{size}/{name}/hop_p50_ratio")
            cells.append(f"{figures[f'{size}/{name}/hop_p50_us'].value:.0f}")
            cells.append("" if ratio is None else str(ratio))
        table.add_row(*cells)
    out.print(table)
    out.print(f"{document['verified']} answers, each compared with the expected one.")
    if document["node_restarts"]:
        out.print(f"[bold red]{document['node_restarts']} node processes ended[/]: measure again")


TRUST = Benchmark("hop-trust", measure_trust, show_trust)
