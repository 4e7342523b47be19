"""Which stages of the models that serve have a node that is ready: pure.

Whoever is woken at night needs to know which stage of which model has nobody. A node that dies is
forgotten after a while; that the stage has nobody stays true, so this is judged from what has to
serve and not from who was seen to die.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from swarm.fleet.picture import FleetNode
from swarm.fleet.priorities import FALLBACK, PRIMARY

# A node that its peers only doubt takes work, until they are sure.
TAKES_WORK = frozenset({"ready", "suspect"})

Version = tuple[str, str]  # model, version


@dataclass(frozen=True, slots=True)
class StageCover:
    """The nodes that are ready for one stage of a version that serves. primaries: those that serve
    it in the first place. standbys, fallbacks: those that take over."""

    model: str
    version: str
    stage: int
    primaries: int = 0
    standbys: int = 0
    fallbacks: int = 0

    @property
    def ready(self) -> int:
        """All of them."""
        return self.primaries + self.standbys + self.fallbacks

    @property
    def line(self) -> str:
        """For people, of a stage that nobody serves."""
        return f"stage {self.stage} of {self.model}@{self.version} has no ready node"


def stages_told(nodes: Iterable[FleetNode]) -> dict[Version, int]:
    """The highest stage of each version that any of these nodes tells of, gone ones included: how
    many stages it has at the least."""
    told: dict[Version, int] = {}
    for node in nodes:
        for stage in node.stages:
            version = str(stage.get("model", "")), str(stage.get("version", ""))
            if all(version):
                told[version] = max(told.get(version, 0), int(stage.get("stage", 0)))
    return told


def covered(
    serving: Mapping[Version, int], nodes: Iterable[FleetNode], now: float
) -> list[StageCover]:
    """How each stage of the versions that serve is covered, by model, version and stage.

    serving: the number of stages of each version that requests may go to. now: seconds, of the
    clock of the picture whose nodes these are.
    """
    ready: dict[tuple[str, str, int], list[int]] = {}
    for node in nodes:
        if node.state(now) not in TAKES_WORK:
            continue
        priority = int(node.status.get("priority", node.gossiped.get("priority", PRIMARY)))
        kind = min(max(priority, PRIMARY), FALLBACK)
        for stage in node.stages:
            key = (str(stage.get("model")), str(stage.get("version")), int(stage.get("stage", 0)))
            ready.setdefault(key, [0, 0, 0])[kind] += 1
    return [
        StageCover(model, version, stage, *ready.get((model, version, stage), (0, 0, 0)))
        for (model, version), last in sorted(serving.items())
        for stage in range(1, last + 1)
    ]


def lacking(covers: Iterable[StageCover]) -> list[StageCover]:
    """The stages that no node is ready for."""
    return [cover for cover in covers if not cover.ready]
