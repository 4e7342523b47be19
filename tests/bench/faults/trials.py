"""Playing a scenario: its trials on a mesh that is ready, under a load that runs all the time.

A trial is a quiet part, the fault at a random moment (seeded), its window, and the return of the
nodes that were lost.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.faults.figures import Trial, scenario_figures
from bench.faults.rig import Rig
from bench.faults.scenarios import Scenario

WARM_UP_SECONDS = 0.7  # seconds of load before the first trial
QUIET_SECONDS = (0.5, 1.0)  # seconds before a fault: least and most
SETTLE_SECONDS = (
    0.5  # seconds after a trial: a node that has just begun to serve is not yet as usual
)


async def play_scenario(rig: Rig, scenario: Scenario, trials: int, rate: float) -> dict[str, Any]:
    """All trials of one scenario on a mesh that is ready; the scenario's part of the document.

    rate: requests a second.
    """
    async with rig.load(rate) as load:
        await asyncio.sleep(WARM_UP_SECONDS)
        await load.take()
        played = [await play_trial(rig, scenario) for _ in range(trials)]
        taken = await load.take()
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
