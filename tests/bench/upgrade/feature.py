"""`swarm bench upgrade`."""

from __future__ import annotations

from bench.commands import Told
from bench.feature import Feature
from nodes.cli.command import option


def upgrade(
    tell: Told,
    devices: int = option(6, "Each runs one shard of 3.", min=3, max=64),
    rate: float = option(30.0, "Requests a second.", min=1),
    kills: bool = option(True, "Updaters are killed, and power is cut."),
) -> int:
    """Requests while devices go to good and bad releases of the node software: none lost."""
    from bench.upgrade.upgrades import UPGRADES, UpgradePlan

    plan = UpgradePlan(devices, rate, kills=kills)
    return tell.run(UPGRADES, plan)


FEATURE = Feature((upgrade,))
