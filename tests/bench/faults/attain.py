"""`swarm bench attain`: the share of requests answered in time, and rightly, at a fixed rate.

Requests are due evenly, whatever became of the earlier ones, and the time of each counts from the
moment at which it was due: a client that was held up hides nothing (Tene: coordinated omission). A
request that fails, is lost or is wrong is never in time. The client is a process of its own.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from support.faulty_mesh import STAGES, Layout, Rig, start_rig
from support.meshes import all_ready, split_digits

from bench.faults.requester import load_on
from bench.report.figure import percentile
from bench.report.frame import Benchmark, Progress
from bench.report.tables import new_table
from nodes.console import out
from nodes.up.mesh import push

WARM_UP_SECONDS = 2.0
CLIENT_LATE = 1.0  # seconds by which the client may be late to send the last request
KILL_EVERY = 5.0  # seconds, at the least: the next one is killed when all are ready again
ALSO_WITHIN = (2.0, 3.0)  # milliseconds whose share is told beside
SHARES = (50.0, 99.0, 99.9, 99.96)  # percent, and when they are reached
Z = 1.96  # of the interval of 95 %


@dataclass(frozen=True)
class AttainPlan:
    """rate: requests a second. within: seconds. seconds: of each phase. kill, rollout: the phases
    beside the quiet one. at_least: percent of the requests that are to be in time in each."""

    rate: float = 200.0
    within: float = 0.02
    seconds: float = 30.0
    kill: bool = False
    rollout: bool = False
    at_least: float = 0.0


def wilson_interval(hits: int, of: int) -> tuple[float, float]:
    """The share that lies behind `hits` of `of`, 95 % sure (Wilson, JASA 1927)."""
    if not of:
        return 0.0, 1.0
    share, n = hits / of, of
    middle = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z / (1 + Z * Z / n) * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)


def scheduled(rows: Sequence[Mapping[str, Any]], began: float, ended: float, rate: float) -> int:
    """How many requests were due from `began` to `ended`, whose rows may be missing."""
    if not rows:
        return round((ended - began) * rate)
    first = min(float(row["due"]) for row in rows)
    before = math.floor((first - began) * rate + 1e-6)
    return before + math.ceil((ended - first) * rate - 1e-6)


def attained(
    rows: Sequence[Mapping[str, Any]], began: float, ended: float, rate: float, within: float
) -> dict[str, Any]:
    """The figures of a phase. rows: as of `bench.faults.requester`. began, ended, within: seconds;
    times in the figures are milliseconds, shares percent; null is what was not reached."""
    rows = [row for row in rows if began <= row["due"] < ended]
    of = scheduled(rows, began, ended, rate)
    right = [row for row in rows if row["status"] == "OK" and not row["wrong"]]
    times = sorted((row["done"] - row["due"]) * 1e3 for row in right)
    in_time = sum(took <= within * 1e3 for took in times)
    low, high = wilson_interval(in_time, of)
    lags = [(row["sent"] - row["due"]) * 1e3 for row in rows]

    def reached(share: float) -> float | None:
        rank = max(1, math.ceil(share / 100 * of - 1e-9))
        return round(times[rank - 1], 2) if rank <= len(times) else None

    return {
        "requests": of,
        "in_time": round(100 * in_time / max(1, of), 3),
        "interval": [round(100 * low, 3), round(100 * high, 3)],
        "reached_ms": {f"{share:g}": reached(share) for share in SHARES},
        "also_within": {
            f"{limit:g} ms": round(100 * sum(t <= limit for t in times) / max(1, of), 3)
            for limit in ALSO_WITHIN
        },
        "late": len(times) - in_time,
        "failed": dict(Counter(row["status"] for row in rows if row["status"] != "OK")),
        "lost": of - len(rows),
        "wrong": sum(row["wrong"] for row in rows),
        "longest_ms": round(times[-1], 1) if times else None,
        "client_lag_ms": {
            "p99": round(percentile(lags, 0.99), 2),
            "max": round(max(lags, default=0.0), 1),
        },
    }


async def measure(plan: AttainPlan, progress: Progress) -> dict[str, Any]:
    """The document. Raises `Unavailable` where a node does not come up."""
    phases: dict[str, Callable[[Rig, float], Awaitable[int]]] = {"quiet": _nothing}
    if plan.kill:
        phases["kill"] = _kill
    if plan.rollout:
        phases["rollout"] = _roll_out
    found: dict[str, Any] = {}
    async with start_rig(Layout(watched=True), quick=True) as rig:
        for node in rig.local.supervisor.nodes:
            node.wanted = True  # the supervisor brings it back
        async with load_on(rig, plan.rate) as take:
            for name, happens in phases.items():
                progress(f"{name}, {plan.seconds:g} s …")
                await all_ready(rig.local)
                await asyncio.sleep(WARM_UP_SECONDS)
                await take()
                began = time.monotonic()
                ended = began + plan.seconds
                events = await happens(rig, ended)
                await asyncio.sleep(max(0.0, ended + CLIENT_LATE - time.monotonic()))
                rows = (await take())["requests"]
                found[name] = {"events": events} | attained(
                    rows, began, ended, plan.rate, plan.within
                )
    return {
        "requests_per_s": plan.rate,
        "arrivals": "even",
        "within_ms": plan.within * 1e3,
        "seconds": plan.seconds,
        "at_least": plan.at_least,
        "phases": found,
    }


async def _nothing(rig: Rig, ended: float) -> int:
    return 0


async def _kill(rig: Rig, ended: float) -> int:
    """SIGKILL of one node after the other; how many."""
    killed = 0
    while time.monotonic() + KILL_EVERY / 2 < ended:
        await asyncio.sleep(KILL_EVERY / 2)
        rig.node(f"shard-{killed % STAGES + 1}").signal(signal.SIGKILL)
        killed += 1
        await asyncio.sleep(min(KILL_EVERY / 2, max(0.0, ended - time.monotonic())))
        await all_ready(rig.local)
    return killed


async def _roll_out(rig: Rig, ended: float) -> int:
    """A new version with the same weights is pushed and promoted in the middle."""
    version = await asyncio.to_thread(split_digits, "2")
    await asyncio.sleep(max(0.0, ended - time.monotonic()) / 3)
    await push(rig.local, version.manifest.to_json(), version.files)
    return 1


def show(document: Mapping[str, Any]) -> None:
    """A column for each phase."""
    rate, seconds, within = (document[n] for n in ("requests_per_s", "seconds", "within_ms"))
    phases = document["phases"]
    title = f"attain: {rate:g} requests/s, evenly, {seconds:g} s each"
    table = new_table(title, "", *phases)
    lines = {
        f"in {within:g} ms, %": [f"{each['in_time']:.2f}" for each in phases.values()],
        "  95 % sure": ["{:.2f}-{:.2f}".format(*each["interval"]) for each in phases.values()],
    }
    for limit in ALSO_WITHIN:
        shares = [each["also_within"][f"{limit:g} ms"] for each in phases.values()]
        lines[f"in {limit:g} ms, %"] = [f"{share:.2f}" for share in shares]
    for share in SHARES:
        times = [each["reached_ms"][f"{share:g}"] for each in phases.values()]
        lines[f"{share:g} % by, ms"] = ["never" if t is None else f"{t:g}" for t in times]
    for name in ("longest_ms", "late", "lost", "wrong"):
        lines[name.replace("_", ", ")] = [str(each[name]) for each in phases.values()]
    lines["failed"] = [str(sum(each["failed"].values())) for each in phases.values()]
    lags = [each["client_lag_ms"] for each in phases.values()]
    lines["client's own lateness, p99/max, ms"] = [f"{lag['p99']:g}/{lag['max']:g}" for lag in lags]
    for name, values in lines.items():
        table.add_row(name, *values)
    out.print(table)


def misses(document: Mapping[str, Any]) -> list[str]:
    """What must not be, and what was asked for and not reached."""
    found = []
    for name, each in document["phases"].items():
        if each["wrong"]:
            found.append(f"{name}: {each['wrong']} answers were wrong")
        if each["lost"]:
            found.append(f"{name}: {each['lost']} requests ended without an outcome")
        if each["in_time"] < document["at_least"]:
            text = f"{name}: {each['in_time']:g} % in time, not {document['at_least']:g} %"
            found.append(text)
    return found


ATTAIN = Benchmark("attain", measure, show, misses=misses)
