"""Options of `swarm fleet …`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from nodes.cli.command import Named, option, seldom


@dataclass(frozen=True)
class WaveOptions:
    """Which release, and how it goes through the fleet."""

    to: str = option("", "Version of a release that was pushed; without it, how the wave stands.")
    canary: int = option(1, "Devices that go first.", min=1)
    step: str = option("10%/5m", "Share of the fleet that follows, and time between two groups.")
    guard: str = option("slo", "slo: a model's objective that burns ends it. none: nothing does.")
    enrol: float = seldom(15.0, "Seconds in which devices see the wave.", min=0)
    stop: bool = seldom(False, "Stop the wave: who is on the way goes back, who is there stays.")


@dataclass(frozen=True)
class UpdaterOptions:
    """What a device runs, and where its releases are."""

    home: str = seldom("/var/lib/swarm-updater", "Folder of the releases.")
    node: str = option(
        "", "Arguments of `swarm-node` for each node of this device, separated by ';'."
    )
    adopt: str = seldom("", "Environment that serves now; this program's own by default.")
    device: Annotated[str, Named("device")] = seldom(
        "", "Its name in waves; by default its user's, or the host's."
    )
    trust: str = option("", "File with the keys whose releases it takes; else yours are.")
    ready: str = option("3m", "Time in which nodes of a release have to become ready.")
    proof: str = seldom("10s", "Time for which they then have to stay so.")
    look: float = seldom(0.5, "Seconds between two looks at the nodes.", min=0.01)
    ask: float = seldom(5.0, "Seconds between two looks at the wave.", min=0.05)
