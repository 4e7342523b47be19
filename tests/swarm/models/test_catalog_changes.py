"""What is looked up while desired state changes is never what stood there before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from swarm.link import Link, LinkOptions
from swarm.model import ModelInfo, Spec, Stage
from swarm.models.catalog import Catalog
from swarm.models.registry import InForce, Registry
from swarm.models.trials import Trials
from swarm.routing import parse_desired
from swarm.subjects import Subjects

SUBJECTS = Subjects("test")
SPEC = (Spec("x", "FP32", (1,)),)


class Changing(Registry):
    """A registry in which version 2 is promoted while it answers for the first time.

    during: the call that it happens in, behind its answer.
    """

    def __init__(self, link: Link, during: str) -> None:
        super().__init__(link, SUBJECTS)
        self.present = "1"
        self.during = during
        self.changed: Callable[[], None] = lambda: None

    async def _answered(self, call: str) -> None:
        if call == self.during:
            self.during, self.present = "", "2"
            self.changed()
        await asyncio.sleep(0)

    async def in_force(self, model: str) -> InForce:
        document = {"model": model, "serve": [{"version": self.present, "share": 100}]}
        await self._answered("in_force")
        return InForce(json.loads(json.dumps(document)), parse_desired(document))

    async def info(self, model: str, version: str = "") -> ModelInfo:
        info = ModelInfo(model, version, SPEC, SPEC, (Stage(1, SPEC, SPEC, 1.0),))
        await self._answered("info")
        return info


async def seen(during: str) -> list[str]:
    """The versions of three requests, of which the first meets the change."""
    link = Link(LinkOptions())
    registry = Changing(link, during)
    catalog = Catalog(registry, Trials())
    registry.changed = catalog.forget
    return [(await catalog.model("m", request_id=f"r{n}")).version for n in range(3)]


async def test_a_desired_state_that_changes_while_it_is_read_is_read_again() -> None:
    assert await seen("in_force") == ["2", "2", "2"]


async def test_a_desired_state_that_changes_while_its_manifest_is_read_is_read_again() -> None:
    assert await seen("info") == ["2", "2", "2"]
