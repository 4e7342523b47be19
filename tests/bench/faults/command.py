"""`swarm bench failover`: what each fault costs the clients that ask meanwhile.

Real processes, a paced load, every answer compared with the whole model's. Three trials or fewer
are the quick mode, with shorter stops and cuts.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.faults.cluster_scenarios import CLUSTER_SCENARIOS
from bench.faults.cluster_scenarios import RATE as CLUSTER_RATE
from bench.faults.rig import Workload, make_workload, start_rig
from bench.faults.scenarios import SCENARIOS, Scenario
from bench.faults.tables import misses, scenario_line, table
from bench.faults.trials import play_scenario, scenario_entry
from bench.report.machine import machine
from nodes.console import err, guarded, out, print_json
from nodes.logs import LogForm, set_up_logging
from swarm.errors import InvalidArgument, SwarmError

MOST_QUICK_TRIALS = 3  # trials up to which stops and cuts are short
REQUESTS_PER_S = 100.0  # requests a second: the scenarios' targets hold at this rate


def run_failover(
    trials: int, scenarios: Sequence[str] | None, as_json: bool, servers: int = 1
) -> int:
    """The command: play scenarios (all when None), `trials` times each. servers: 1, or 3 for the
    scenarios of a cluster.

    Returns 0 only if every target was met. A scenario that cannot be played here is skipped, with
    the reason, and fails nothing.
    """
    set_up_logging(LogForm())
    logging.getLogger("swarm").setLevel(logging.ERROR)

    async def main() -> int:
        if servers not in (1, 3):
            raise InvalidArgument(f"--servers {servers}: it is 1 or 3")
        chosen = _chosen(scenarios, CLUSTER_SCENARIOS if servers > 1 else SCENARIOS)
        rate = CLUSTER_RATE if servers > 1 else REQUESTS_PER_S
        if trials < 1:
            raise InvalidArgument("at least one trial")
        with tempfile.TemporaryDirectory(prefix="failover-") as directory:
            workload = await asyncio.to_thread(make_workload, Path(directory))
            played: dict[str, dict[str, Any]] = {}
            for _, group in itertools.groupby(chosen, lambda scenario: scenario.layout):
                one_layout = list(group)
                names = ", ".join(scenario.name for scenario in one_layout)
                err.print(f"failover: {names} …", highlight=False)
                played |= await _play_layout(one_layout, workload, trials, rate)
                for scenario in one_layout:
                    err.print(f"failover: {scenario_line(played[scenario.name])}", highlight=False)
        doc = {
            "v": 1,
            "bench": "failover",
            "machine": machine(),
            "trials": trials,
            "quick": trials <= MOST_QUICK_TRIALS,
            "servers": servers,
            "requests_per_s": rate,
            "budget_ms": chosen[0].layout.budget * 1e3,
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


def _chosen(names: Sequence[str] | None, known: Mapping[str, Scenario]) -> list[Scenario]:
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise InvalidArgument(f"no scenario {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [known[name] for name in names] if names else list(known.values())
    # One mesh serves all scenarios of its layout.
    layouts = list(dict.fromkeys(scenario.layout for scenario in chosen))
    return sorted(chosen, key=lambda scenario: layouts.index(scenario.layout))


async def _play_layout(
    scenarios: Sequence[Scenario], workload: Workload, trials: int, rate: float
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
            async with start_rig(current.layout, workload, quick) as rig:
                for current in left:
                    played[current.name] = await play_scenario(rig, current, trials, rate)
        except (SwarmError, TimeoutError) as error:
            played[current.name] = scenario_entry(
                current, status="failed", reason=f"{type(error).__name__}: {error}", passed=False
            )
    return played
