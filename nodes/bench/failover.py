"""`swarm bench failover`: what each fault costs those who ask meanwhile.

Real processes, a paced load, every answer compared with the whole model's. A trial is a
quiet part, the fault at a random moment (seeded), its window, and the return of what was
lost. Three trials or fewer are the quick mode: shorter stops and cuts.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from nodes.bench.failover_figures import Trial, scenario_figures
from nodes.bench.failover_rig import BUDGET, Rig, Workload, make_workload, rig
from nodes.bench.failover_scenarios import SCENARIOS, Scenario, play
from nodes.bench.peers.report import machine
from nodes.cli.console import err, guarded, out, print_json
from nodes.life.process import set_up_logging
from swarm.errors import InvalidArgument, SwarmError

QUICK = 3  # trials up to which stops and cuts are short
LATE = 20.0  # ms that the requester may be late before its figures are doubted
WARM_UP = 0.7  # seconds of load before the first trial


def run_failover(
    trials: int, scenarios: Sequence[str] | None, as_json: bool, rate: float = 100.0
) -> int:
    """Play scenarios (all when None) `trials` times each at `rate` requests a second.

    Returns 0 only if every target was met; a scenario that cannot be played here is skipped,
    with the reason, and fails nothing.
    """
    set_up_logging(False)
    logging.getLogger("swarm").setLevel(logging.ERROR)

    async def main() -> int:
        chosen = _chosen(scenarios)
        if trials < 1 or rate <= 0:
            raise InvalidArgument("at least one trial, and more than 0 requests a second")
        with tempfile.TemporaryDirectory(prefix="failover-") as directory:
            workload = await asyncio.to_thread(make_workload, Path(directory))
            played: dict[str, dict[str, Any]] = {}
            for _, group in itertools.groupby(chosen, lambda s: s.layout):
                same = list(group)
                err.print(f"failover: {', '.join(s.name for s in same)} …", highlight=False)
                played |= await _play_layout(same, workload, trials, rate)
                for scenario in same:
                    err.print(f"failover: {_line(played[scenario.name])}", highlight=False)
        doc = {
            "v": 1,
            "bench": "failover",
            "machine": machine(),
            "trials": trials,
            "quick": trials <= QUICK,
            "requests_per_s": rate,
            "budget_ms": BUDGET * 1e3,
            "scenarios": played,
        }
        if as_json:
            print_json(doc)
        else:
            out.print(table(doc))
            for line in misses(doc):
                out.print(line, highlight=False)
        return int(any(not entry.get("passed", True) for entry in played.values()))

    return guarded(main, as_json)


def _chosen(names: Sequence[str] | None) -> list[Scenario]:
    unknown = [name for name in names or () if name not in SCENARIOS]
    if unknown:
        raise InvalidArgument(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    chosen = [SCENARIOS[name] for name in names] if names else list(SCENARIOS.values())
    # One mesh serves all scenarios of its layout.
    layouts = list(dict.fromkeys(scenario.layout for scenario in chosen))
    return sorted(chosen, key=lambda scenario: layouts.index(scenario.layout))


async def _play_layout(
    scenarios: Sequence[Scenario], workload: Workload, trials: int, rate: float
) -> dict[str, dict[str, Any]]:
    """A scenario that fails costs the rest of its layout a new mesh, never the bench."""
    played: dict[str, dict[str, Any]] = {}
    while len(played) < len(scenarios):
        left = [s for s in scenarios if s.name not in played]
        current = left[0]
        if reason := current.unavailable():
            played[current.name] = _entry(current, status="skipped", reason=reason)
            continue
        try:
            async with rig(current.layout, workload, trials <= QUICK) as made:
                for current in left:
                    played[current.name] = await play_scenario(made, current, trials, rate)
        except (SwarmError, TimeoutError) as error:
            played[current.name] = _entry(
                current, status="failed", reason=f"{type(error).__name__}: {error}", passed=False
            )
    return played


async def play_scenario(made: Rig, scenario: Scenario, trials: int, rate: float) -> dict[str, Any]:
    """All trials of one scenario on a mesh that is ready; its part of the document."""
    async with made.load(rate) as load:
        await asyncio.sleep(WARM_UP)
        await load.take()
        marks = []
        for _ in range(trials):
            marks.append(Trial(*await play(made, scenario)))
        taken = await load.take()
    figures = scenario_figures(
        taken["requests"], taken["doubles"], marks, await made.ack_waits(), scenario.targets
    )
    return _entry(scenario, status="ok", **figures)


def _entry(scenario: Scenario, **fields: Any) -> dict[str, Any]:
    return {"scenario": scenario.name, "title": scenario.title, **fields}


def table(doc: dict[str, Any]) -> Table:
    """One row a scenario; times in milliseconds; usual: p50/p99; ack: the longest ack_wait."""
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


def misses(doc: dict[str, Any]) -> Iterable[str]:
    """A line for each target that was not met, and for each scenario that was not played."""
    for entry in doc["scenarios"].values():
        if entry["status"] != "ok":
            yield f"  {entry['status']}: {entry['scenario']}: {entry['reason']}"
        for verdict in entry.get("targets", ()):
            if not verdict["passed"]:
                yield (
                    f"  missed: {entry['scenario']}: {verdict['target']}: "
                    f"{verdict['measured']}, limit {verdict['limit']}"
                )
        late = entry.get("lag_ms", {}).get("max", 0.0)
        if late > LATE and not entry["passed"]:
            yield (
                f"  note: {entry['scenario']}: the requester itself was {late:.0f} ms late once: "
                "this machine was busy with something else"
            )


def _three(values: dict[str, float]) -> str:
    return "/".join(f"{values[key]:.0f}" for key in ("p50", "p99", "max"))


def _line(entry: dict[str, Any]) -> str:
    if entry["status"] != "ok":
        return f"{entry['scenario']} {entry['status']}: {entry['reason']}"
    return (
        f"{entry['scenario']}: gap {_three(entry['gap_ms'])} ms, slowest "
        f"{_three(entry['slowest_ms'])} ms, lost {entry['lost']}, refused {entry['refused']}, "
        f"wrong {entry['wrong']}, doubles {entry['doubles']}, "
        f"{'kept' if entry['passed'] else 'missed'}"
    )
