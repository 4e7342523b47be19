"""`python -m bench.faults.credit [TRIALS] [--json]`: what a lane's credit costs and buys.

A node's credit is the number of messages that it has asked for or has in hand. With a small credit
no pull is parked while the primary is busy, and the overflow goes to the fallback. A large credit
feeds a node that hangs. For each credit a mesh of its own shows the death and the hang of shard-2
from outside, and the share of the requests that the fallback takes while shard-2 is healthy.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from support.faulty_mesh import Layout, Rig, start_rig

from bench.faults.failover import play_scenario
from bench.faults.requester import load_on
from bench.faults.scenarios import WINDOW_TAIL, Scenario, Targets, kill
from bench.report.figure import percentile
from bench.report.frame import Benchmark, Progress
from nodes.console import out

CREDITS = (1, 2, 4, 8, 16)
RATES = (100.0, 300.0, 0.0)  # requests a second; 0: as fast as they are answered
IN_FLIGHT = 32  # where the rate is 0
HEALTHY_SECONDS = 3.0  # of load for the fallback's share
STOPPED_SECONDS = 2.0  # of SIGSTOP: longer than a parked pull lives


async def measure_credit(trials: int, progress: Progress) -> dict[str, Any]:
    """Measure every credit."""
    rows = []
    for credit in CREDITS:
        progress(f"credit {credit} …")
        rows.append(await _measure(credit, trials))
    return {"trials": trials, "credits": rows}


def misses(document: dict[str, Any]) -> list[str]:
    """A line for each credit with which something was lost or wrong."""
    return [
        f"credit {row['credit']}: {row['lost']} lost, {row['wrong']} wrong"
        for row in document["credits"]
        if row["lost"] or row["wrong"]
    ]


async def _hang(rig: Rig) -> None:
    """A stop, and a new process afterwards, so that every trial begins with the given credit."""
    node = rig.node("shard-2")
    node.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(STOPPED_SECONDS)
    finally:
        node.signal(signal.SIGCONT)
    await asyncio.sleep(WINDOW_TAIL)
    await rig.drain(node)


async def _measure(credit: int, trials: int) -> dict[str, Any]:
    row: dict[str, Any] = {"credit": credit}
    async with start_rig(Layout(credit=credit), quick=True) as rig:
        row["healthy"] = [await _healthy(rig, rate) for rate in RATES]
        for name, inflict in (("kill", kill("shard-2")), ("stop", _hang)):
            scenario = Scenario(name, f"{name} of shard-2", inflict, Targets())
            figures = await play_scenario(rig, scenario, trials, RATES[0])
            row[name] = {
                key: figures[key] for key in ("gap_ms", "slowest_ms", "affected", "lost", "wrong")
            }
    for key in ("lost", "wrong"):
        row[key] = row["kill"][key] + row["stop"][key] + sum(h[key] for h in row["healthy"])
    return row


async def _healthy(rig: Rig, rate: float) -> dict[str, Any]:
    """The fallback's share of stage 2, and the load's rate and latency."""
    async with load_on(rig, rate, IN_FLIGHT) as take:
        await asyncio.sleep(1.0)
        await take()
        await asyncio.sleep(HEALTHY_SECONDS)
        requests = (await take())["requests"]
    good = [request for request in requests if request["status"] == "OK"]
    latencies = [(request["done"] - request["sent"]) * 1e3 for request in good]
    span = max((r["done"] for r in good), default=0.0) - min((r["sent"] for r in good), default=0.0)
    return {
        "requests_per_s": rate,
        "answered_per_s": round(len(good) / span, 1) if span else 0.0,
        "fallback_share": round(sum(map(_by_fallback, good)) / max(1, len(good)), 4),
        "p50_ms": round(percentile(latencies, 0.50), 2),
        "p99_ms": round(percentile(latencies, 0.99), 2),
        "lost": len(requests) - len(good),
        "wrong": sum(request["wrong"] for request in requests),
    }


def _by_fallback(request: Mapping[str, Any]) -> bool:
    """Whether stage 2, the second hop, was the fallback's."""
    nodes = request["nodes"]
    return len(nodes) > 1 and nodes[1].startswith("fallback")


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Times in milliseconds, p50/max over the trials; affected: requests over 50 ms."""
    drawn = Table(title="credit: what a fault costs, and what the fallback takes when all is well")
    drawn.add_column("credit", justify="right")
    for fault in ("kill", "stop"):
        for heading in ("gap", "slowest", "affected"):
            drawn.add_column(f"{fault}: {heading}", justify="right")
    for rate in RATES:
        name = f"{rate:g}/s" if rate else f"{IN_FLIGHT} in flight"
        drawn.add_column(f"{name}: fallback, p99", justify="right")
    drawn.add_column("answered/s", justify="right")
    for row in rows:
        cells = [str(row["credit"])]
        for fault in ("kill", "stop"):
            for key in ("gap_ms", "slowest_ms", "affected"):
                cells.append(f"{row[fault][key]['p50']:.0f}/{row[fault][key]['max']:.0f}")
        for healthy in row["healthy"]:
            cells.append(f"{healthy['fallback_share']:.1%}, {healthy['p99_ms']:.1f}")
        drawn.add_row(*cells, f"{row['healthy'][-1]['answered_per_s']:.0f}")
    return drawn


if __name__ == "__main__":
    import sys

    credit = Benchmark(
        "credit", measure_credit, lambda doc: out.print(table(doc["credits"])), misses=misses
    )
    trials = next((int(word) for word in sys.argv[1:] if word.isdecimal()), 5)
    raise SystemExit(credit.run(trials, "--json" in sys.argv))
