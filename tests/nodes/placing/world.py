"""A world of one edge, one link and one mesh, for the placement of requests."""

from __future__ import annotations

import random
from dataclasses import dataclass

from nodes.placing.choice import ChosenWay, EdgeWays, PlacingFacts
from nodes.placing.ways import NOWHERE, FeaturePrivacy, RequestWay, ways_of
from swarm.model import ModelInfo, Spec, Stage

KB = 250  # FP32 values


def model(sizes: tuple[int, ...], edge: bool = False, out: int = 10) -> ModelInfo:
    """A model whose stage k receives a tensor of `sizes[k]` values. edge: with a stage 0, if
    there are two at least."""
    specs = [Spec(f"t{at}", "FP32", (1, size)) for at, size in enumerate(sizes)]
    specs.append(Spec("out", "FP32", (1, out)))
    edge = edge and len(sizes) > 1
    first = 0 if edge else 1
    stages = tuple(
        Stage(first + at, (specs[at],), (specs[at + 1],), 1.0) for at in range(len(sizes))
    )
    return ModelInfo(
        "m", "1", (specs[0],), (specs[-1],), stages[1 - first :], stages[0] if edge else None
    )


@dataclass(frozen=True)
class Conditions:
    """mbit: Mbit/s. round_trip: seconds. local, remote: seconds of each stage."""

    mbit: float
    round_trip: float
    local: float
    remote: float


@dataclass
class World:
    """True times, with noise, and what an edge sees of them."""

    info: ModelInfo
    placement: EdgeWays
    seed: int = 0
    noise: float = 0.05
    budget: float = 5.0
    now: float = 0.0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def time(self, way: RequestWay, at: Conditions) -> tuple[float, float]:
        """(seconds of a request, seconds of it on the link)."""
        here = len(way.local) * at.local
        if way.entry == NOWHERE:
            return here, 0.0
        size = way.sent + way.answered
        on_way = at.round_trip + size / (at.mbit * 125_000)
        return here + on_way + (self.info.last + 1 - way.entry) * at.remote, on_way

    def ask(self, at: Conditions, gap: float) -> tuple[ChosenWay, float]:
        """One request, with its probe; the choice, and its seconds."""
        self.now += gap
        remote = {stage.stage: at.remote for stage in self.info.stages}
        facts = PlacingFacts(self.budget, round_trip=at.round_trip, remote=remote)
        choice = self.placement.choose(facts, self.now)
        assert choice is not None
        took = 0.0
        for way in (choice.probe, choice.way):
            if way is None:
                continue
            seconds, on_way = self.time(way, at)
            factor = self.random.lognormvariate(0, self.noise)
            took = min(self.budget, seconds * factor)
            for stage in way.local:
                self.placement.ran(stage, at.local * factor, self.now)
            self.placement.ended(way, facts, took, on_way * factor, self.now + took)
        self.now += took
        return choice, took

    def best(self, at: Conditions) -> float:
        """Seconds of a request by the best way that may be taken, without noise."""
        return min(self.time(way, at)[0] for way in self.placement.ways)


def world(info: ModelInfo, held: range, privacy: FeaturePrivacy, seed: int = 0) -> World:
    local = dict.fromkeys(held, 0.001)
    return World(info, EdgeWays(ways_of(info, held), info.last, local, privacy=privacy), seed)
