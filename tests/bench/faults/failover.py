"""`swarm bench failover`: what each fault costs the clients that ask meanwhile.

Real processes, a paced load, every answer compared with the whole model's. Three trials or fewer
are the quick mode, with shorter stops and cuts.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from support.faulty_mesh import Rig, start_rig

from bench.faults.failover_figures import Trial, scenario_figures
from bench.faults.requester import load_on
from bench.faults.scenarios import CLUSTER_RATE, CLUSTER_SCENARIOS, SCENARIOS, Scenario
from bench.report.frame import Benchmark, Progress
from nodes.console import err, out
from swarm.errors import InvalidArgument, SwarmError

WARM_UP_SECONDS = 0.7  # seconds of load before the first trial
QUIET_SECONDS = (0.5, 1.0)  # seconds before a fault: least and most
# After a trial: a node that has just begun to serve is not yet as usual.
SETTLE_SECONDS = 0.5


async def play_scenario(rig: Rig, scenario: Scenario, trials: int, rate: float) -> dict[str, Any]:
    """All trials of one scenario on a mesh that is ready; the scenario's part of the document.

    rate: requests a second.
    """
    async with load_on(rig, rate) as take:
        await asyncio.sleep(WARM_UP_SECONDS)
        await take()
        played = [await play_trial(rig, scenario) for _ in range(trials)]
        taken = await take()
    figures = scenario_figures(
        taken["requests"], taken["doubles"], played, await rig.ack_waits(), scenario.targets
    )
    return scenario_entry(scenario, status="ok", **figures)


async def play_trial(rig: Rig, scenario: Scenario) -> Trial:
    """One trial. Nodes that live but serve nothing after it are replaced by new processes."""
    if scenario.prepare is not None:
        await scenario.prepare(rig)
    quiet = time.monotonic()
    await asyncio.sleep(rig.rng.uniform(*QUIET_SECONDS))
    fault = time.monotonic()
    await scenario.inflict(rig)
    end = time.monotonic()
    await rig.revive(rig.local.supervisor.nodes)
    stayed_out = await rig.idle_shards() if scenario.targets.returns else []
    for node in stayed_out:
        await rig.drain(node)
    await rig.revive(stayed_out)
    ready_again = time.monotonic()
    await asyncio.sleep(SETTLE_SECONDS)
    return Trial(quiet, fault, end, ready_again, len(stayed_out))


def scenario_entry(scenario: Scenario, **fields: Any) -> dict[str, Any]:
    """A scenario's part of the document."""
    return {"scenario": scenario.name, "title": scenario.title, **fields}


MOST_LATE_MS = 20.0  # ms that the requester may be late before its figures are doubted


def table(doc: dict[str, Any]) -> Table:
    """A row for each scenario; times in milliseconds; usual: p50/p99; ack: the longest ack_wait."""
    drawn = Table(
        title=f"failover, {doc['requests_per_s']:g} requests/s, {doc['trials']} trials",
        caption="ms: p50/p99/max over the trials; twice: answers that came once more",
    )
    drawn.add_column("scenario", no_wrap=True)
    for heading in ("gap ms", "slowest ms", ">50 ms", "lost", "refused", "wrong", "twice"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for heading in ("usual", "ack", "targets"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for entry in doc["scenarios"].values():
        if entry["status"] != "ok":
            drawn.add_row(entry["scenario"], entry["status"])
            continue
        drawn.add_row(
            entry["scenario"],
            _three(entry["gap_ms"]),
            _three(entry["slowest_ms"]),
            f"{entry['affected']['p99']:.0f}",
            str(entry["lost"]),
            str(entry["refused"]),
            str(entry["wrong"]),
            str(entry["doubles"]),
            f"{entry['usual_ms']['p50']:.1f}/{entry['usual_ms']['p99']:.1f}",
            f"{max(entry['ack_wait_ms'].values()):.0f}",
            "[green]kept[/]" if entry["passed"] else "[red]missed[/]",
        )
    return drawn


def show(document: dict[str, Any]) -> None:
    """The table, then a line for each scenario that was not played, and for each that missed a
    target while the requester itself was late."""
    out.print(table(document))
    for entry in document["scenarios"].values():
        if entry["status"] == "skipped":
            out.print(f"  skipped: {entry['scenario']}: {entry['reason']}", highlight=False)
        late = entry.get("lag_ms", {}).get("max", 0.0)
        if late > MOST_LATE_MS and not entry["passed"]:
            out.print(
                f"  note: {entry['scenario']}: the requester itself was {late:.0f} ms late once: "
                "this machine was busy with something else",
                highlight=False,
            )


def misses(document: dict[str, Any]) -> list[str]:
    """A line for each target that was not met, and for each scenario that failed."""
    found = []
    for entry in document["scenarios"].values():
        if entry["status"] == "failed":
            found.append(f"{entry['scenario']}: {entry['reason']}")
        for verdict in entry.get("targets", ()):
            if not verdict["passed"]:
                name, measured = verdict["target"], verdict["measured"]
                found.append(f"{entry['scenario']}: {name}: {measured}, limit {verdict['limit']}")
    return found


def _three(values: dict[str, float]) -> str:
    return "/".join(f"{values[key]:.0f}" for key in ("p50", "p99", "max"))


def scenario_line(entry: dict[str, Any]) -> str:
    """One line of text for one scenario."""
    if entry["status"] != "ok":
        return f"{entry['scenario']} {entry['status']}: {entry['reason']}"
    return (
        f"{entry['scenario']}: gap {_three(entry['gap_ms'])} ms, slowest "
        f"{_three(entry['slowest_ms'])} ms, lost {entry['lost']}, refused {entry['refused']}, "
        f"wrong {entry['wrong']}, doubles {entry['doubles']}, "
        f"{'kept' if entry['passed'] else 'missed'}"
    )


MOST_QUICK_TRIALS = 3  # trials up to which stops and cuts are short
REQUESTS_PER_S = 100.0  # requests a second: the scenarios' targets hold at this rate


@dataclass(frozen=True)
class FailoverPlan:
    """trials: of each scenario. scenarios: names; all when empty. servers: 1, or 3 for the
    scenarios of a cluster."""

    trials: int = 10
    scenarios: Sequence[str] = ()
    servers: int = 1


async def measure_failover(plan: FailoverPlan, progress: Progress) -> dict[str, Any]:
    """The document. A scenario that cannot be played here is skipped, with the reason, and fails
    nothing. Raises `InvalidArgument`."""
    if plan.servers not in (1, 3):
        raise InvalidArgument(f"--servers {plan.servers}: it is 1 or 3")
    chosen = _chosen(plan.scenarios, CLUSTER_SCENARIOS if plan.servers > 1 else SCENARIOS)
    rate = CLUSTER_RATE if plan.servers > 1 else REQUESTS_PER_S
    played: dict[str, dict[str, Any]] = {}
    for _, group in itertools.groupby(chosen, lambda scenario: scenario.layout):
        one_layout = list(group)
        progress(", ".join(scenario.name for scenario in one_layout) + " …")
        played |= await _play_layout(one_layout, plan.trials, rate)
        for scenario in one_layout:
            err.print(f"failover: {scenario_line(played[scenario.name])}", highlight=False)
    return {
        "trials": plan.trials,
        "quick": plan.trials <= MOST_QUICK_TRIALS,
        "servers": plan.servers,
        "requests_per_s": rate,
        "budget_ms": chosen[0].layout.budget * 1e3,
        "scenarios": played,
    }


def _chosen(names: Sequence[str], known: Mapping[str, Scenario]) -> list[Scenario]:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidArgument(f"no scenario {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [known[name] for name in names] if names else list(known.values())
    # One mesh serves all scenarios of its layout.
    layouts = list(dict.fromkeys(scenario.layout for scenario in chosen))
    return sorted(chosen, key=lambda scenario: layouts.index(scenario.layout))


async def _play_layout(
    scenarios: Sequence[Scenario], trials: int, rate: float
) -> dict[str, dict[str, Any]]:
    """Scenarios of one layout, on one mesh. After a scenario that fails, the rest gets a new mesh;
    no failure ends the benchmark."""
    played: dict[str, dict[str, Any]] = {}
    while len(played) < len(scenarios):
        left = [s for s in scenarios if s.name not in played]
        current = left[0]
        if reason := current.unavailable():
            played[current.name] = scenario_entry(current, status="skipped", reason=reason)
            continue
        try:
            quick = trials <= MOST_QUICK_TRIALS
            async with start_rig(current.layout, quick) as rig:
                for current in left:
                    played[current.name] = await play_scenario(rig, current, trials, rate)
        except (SwarmError, TimeoutError) as error:
            played[current.name] = scenario_entry(
                current, status="failed", reason=f"{type(error).__name__}: {error}", passed=False
            )
    return played


FAILOVER = Benchmark("failover", measure_failover, show, misses=misses)
