"""Which stages of the models that serve have a node that is ready: pure.

Whoever is woken at night needs to know which stage of which model has nobody. A dead node is
forgotten after a while, but its stage still has nobody. So coverage is judged by the versions that
have to serve, and not by the nodes that were seen to die.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from swarm.fleet.priorities import FALLBACK, PRIMARY
from swarm.fleet.view import FleetNode

# A suspected node still takes work, until its peers declare it dead.
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
    clock of the view whose nodes these are.
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


def served_unlisted(names: Collection[str], nodes: Iterable[FleetNode], now: float) -> list[str]:
    """The models that ready nodes serve while the server lists none at all: it has lost its store,
    and who asks for one of them is told that there is none. names: the models that it lists."""
    if names:
        return []
    ready = (node for node in nodes if node.state(now) in TAKES_WORK)
    return sorted({model for model, _ in stages_told(ready)})


def unlisted_line(model: str) -> str:
    """For people, of a model of `served_unlisted`."""
    return (
        f"{model} is served by nodes, and the server lists no model: its store was lost; push the "
        "model again: swarm model push DIR"
    )


def out_of_service(
    serving: Mapping[Version, int], unlisted: Iterable[str], nodes: Iterable[FleetNode], now: float
) -> list[str]:
    """A line for each thing for which requests find no answer: a stage without a ready node, a
    model that is `served_unlisted`, a lane that a living node finds wrong at the server. serving,
    now: as of `covered`. The page's one line is bad wherever there is such a line."""
    nodes = list(nodes)
    lanes = {
        f"{flaw['title']} is missing at the server, or not as it has to be"
        for node in nodes
        if not node.is_gone(now)
        for flaw in node.status.get("flaws", ())
        if flaw.get("of")
    }
    stages = [cover.line for cover in lacking(covered(serving, nodes, now))]
    return [*stages, *map(unlisted_line, unlisted), *sorted(lanes)]


def lacking(covers: Iterable[StageCover]) -> list[StageCover]:
    """The stages that no node is ready for."""
    return [cover for cover in covers if not cover.ready]
