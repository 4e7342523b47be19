"""`swarm bench learning`; the parsers of what learners say are attacked by `hostile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.commands import Drawn
from bench.feature import Feature
from nodes.cli.command import option

if TYPE_CHECKING:
    from bench.hostile.target import Target


def learning(
    tell: Drawn,
    full: bool = option(False, "Up to 256 nodes: a quarter of an hour."),
    seed: int = option(1, "Of the simulation."),
) -> int:
    """What a fleet learns by sparse deltas, simulated, beside a parameter server's bytes."""
    from bench.learning.simulated import LEARNING
    from bench.simulations import SimulationPlan

    return tell.run(LEARNING, SimulationPlan(full, seed))


def _targets() -> tuple[Target, ...]:
    from bench.learning.targets import TARGETS

    return TARGETS


FEATURE = Feature((learning,), _targets)
