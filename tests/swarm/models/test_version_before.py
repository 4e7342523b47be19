"""A version is taken back while its nodes come and go: requests keep to the one with better nodes.
Simulated: nodes and time are numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from swarm.errors import BadSignature, Untrusted
from swarm.fleet.advertised import StagePeer
from swarm.fleet.placement import Placement, Served
from swarm.fleet.priorities import FALLBACK, PRIMARY
from swarm.link import Link, LinkOptions
from swarm.model import ModelInfo, Spec, Stage
from swarm.models.catalog import KEPT_FOR, Catalog
from swarm.models.registry import InForce, Registry
from swarm.models.trials import Trials
from swarm.routing import BadDesiredState, parse_desired
from swarm.subjects import Subjects

SUBJECTS = Subjects("test")
SPEC = (Spec("x", "FP32", (1,)),)
STAGES = (1, 2, 3)
ROLLED_BACK = 10.0


@dataclass(frozen=True)
class Node:
    """A node of these stages; from..until, in seconds, by version: when it serves it."""

    name: str
    priority: int
    stages: tuple[int, ...]
    serves: dict[str, list[tuple[float, float]]]

    def is_serving(self, version: str, now: float) -> bool:
        return any(begin <= now < end for begin, end in self.serves.get(version, []))


class Fleet(Registry):
    """A registry whose model goes back from version 2 to 1, and the nodes that serve them."""

    def __init__(self, nodes: list[Node]) -> None:
        self.now = 0.0
        self.nodes = nodes
        link = Link(LinkOptions())
        super().__init__(link, SUBJECTS)
        self.placement = Placement("", self._peers)
        self.catalog = Catalog(self, Trials(), self.placement.served, lambda: self.now)

    def _peers(self, info: ModelInfo, stage: int) -> Iterable[StagePeer]:
        for node in self.nodes:
            if stage in node.stages and node.is_serving(info.version, self.now):
                yield StagePeer(node.name, node.priority, "", draining=False)

    async def in_force(self, model: str) -> InForce:
        version = "2" if self.now < ROLLED_BACK else "1"
        document = {"model": model, "serve": [{"version": version, "share": 100}]}
        return InForce(document, parse_desired(document))

    async def info(self, model: str, version: str = "") -> ModelInfo:
        return ModelInfo(
            model, version, SPEC, SPEC, tuple(Stage(n, SPEC, SPEC, 1.0) for n in STAGES)
        )

    async def asked(self, until: float) -> list[tuple[float, str, Served]]:
        """One request each tenth of a second: when, its version, and the nodes of that."""
        seen, rolled_back = [], False
        while self.now < until:
            if self.now >= ROLLED_BACK and not rolled_back:
                rolled_back = True
                self.catalog.forget()
            info = await self.catalog.model("m", request_id=f"r{self.now}")
            seen.append((self.now, info.version, self.placement.served(info)))
            self.now = round(self.now + 0.1, 1)
        return seen


def primary(stage: int, loaded: float) -> Node:
    """It serves version 2 all the time, and version 1 from `loaded` on."""
    return Node(f"shard-{stage}", PRIMARY, (stage,), {"2": [(0.0, 99.0)], "1": [(loaded, 99.0)]})


@pytest.mark.parametrize("restarted", [10.2, 11.5, 13.9])
async def test_a_fallback_that_comes_back_first_does_not_get_all_requests_of_a_rolled_back_version(
    restarted: float,
) -> None:
    lives = [(0.0, 9.5), (restarted, 99.0)]  # killed just before the rollback
    fallback = Node("fallback", FALLBACK, STAGES, {"1": lives[1:], "2": lives})
    fleet = Fleet([primary(1, 12.0), primary(2, 14.0), primary(3, 13.0), fallback])
    seen = await fleet.asked(20.0)
    assert {nodes for _, _, nodes in seen} == {Served.BY_PRIMARIES}
    assert {version for now, version, _ in seen if now < 14.0} == {"2"}
    assert {version for now, version, _ in seen if now >= 14.0} == {"1"}


async def test_a_version_that_only_a_fallback_can_serve_waits_for_no_better_one() -> None:
    lives = [(0.0, 99.0)]
    fallback = Node("fallback", FALLBACK, STAGES, {"1": lives, "2": lives})
    fleet = Fleet([fallback])
    assert {version for now, version, _ in await fleet.asked(12.0) if now >= ROLLED_BACK} == {"1"}


async def test_a_version_whose_primaries_never_come_serves_by_its_fallback_in_the_end() -> None:
    fallback = Node("fallback", FALLBACK, STAGES, {"1": [(10.0, 99.0)], "2": [(0.0, 99.0)]})
    fleet = Fleet([primary(1, 99.0), primary(2, 99.0), primary(3, 99.0), fallback])
    seen = await fleet.asked(ROLLED_BACK + KEPT_FOR + 2.0)
    assert seen[-1][1:] == ("1", Served.BY_FALLBACKS)


class Spoilt(Fleet):
    """Desired state that somebody has written over, once it was read; or from the beginning."""

    error: Exception | None = None

    async def in_force(self, model: str) -> InForce:
        if self.error is not None:
            raise self.error
        return await super().in_force(model)


@pytest.mark.parametrize("error", [BadDesiredState("garbage"), BadSignature("no"), Untrusted("no")])
async def test_a_spoilt_desired_state_changes_nothing_for_who_knew_a_good_one(
    error: Exception,
) -> None:
    fleet = Spoilt([])
    fleet.error = error
    with pytest.raises(type(error)):
        await fleet.catalog.model("m")
    fleet.error = None
    assert (await fleet.catalog.model("m")).version == "2"
    fleet.error = error
    fleet.catalog.forget()
    assert (await fleet.catalog.model("m")).version == "2"
    fleet.error, fleet.now = None, ROLLED_BACK
    fleet.catalog.forget()
    assert (await fleet.catalog.model("m")).version == "1"
