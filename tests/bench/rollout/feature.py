"""`swarm bench rollout`."""

from __future__ import annotations

from bench.commands import Told
from bench.feature import Feature
from nodes.cli.command import option


def rollout(
    tell: Told,
    rate: float = option(100.0, "Requests a second.", min=1.0),
    quiet: float = option(3.0, "Seconds of load alone before each phase, to compare.", min=0.5),
    kills: bool = option(True, "Kill a node in the middle of each phase."),
) -> int:
    """Versions come and go under load, by promotion, canary and shadow: nothing may be lost."""
    from bench.rollout.rollouts import ROLLOUT, RolloutBench

    return tell.run(ROLLOUT, RolloutBench(rate, quiet, kills))


FEATURE = Feature((rollout,))
