"""What the fault tests share: few trials, and bounds that a busy machine keeps too."""

from __future__ import annotations

from typing import Any

from nodes.bench.faults.rig import Rig
from nodes.bench.faults.scenarios import SCENARIOS
from nodes.bench.faults.trials import play_scenario

RATE = 100.0  # requests a second
REFUSED = 0.1  # of the requests at most: a busy machine has real queues after a fault


async def played(mesh: Rig, name: str, trials: int = 1) -> dict[str, Any]:
    """Play a scenario of the bench; nothing may be lost or wrong, whichever it is."""
    scenario = SCENARIOS[name]
    assert scenario.layout == mesh.layout, f"{name} needs another mesh"
    figures = await play_scenario(mesh, scenario, trials, RATE)
    assert figures["lost"] == 0, figures["errors"]
    assert figures["refused"] <= REFUSED * figures["requests"], figures["errors"]
    assert figures["wrong"] == 0
    assert figures["wrong_doubles"] == 0
    assert figures["usual_ms"]["requests"] > 20 * trials, "the load did not run"
    return figures


def slowest(figures: dict[str, Any]) -> float:
    """Milliseconds of the slowest request of all windows."""
    return float(figures["slowest_ms"]["max"])


def gap(figures: dict[str, Any]) -> float:
    """Milliseconds of the longest time without an answer."""
    return float(figures["gap_ms"]["max"])


def by_fallback(figures: dict[str, Any]) -> float:
    """The smallest share, over the trials, of a window's requests that a fallback had a
    part in."""
    return min(float(trial["fallback_share"]) for trial in figures["each"])
