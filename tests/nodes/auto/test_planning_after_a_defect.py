"""What ends a look at the plans costs that look, and nothing that was known before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.ended import end_idle, node_of, none_turn, serve_digits
from support.waiting import eventually

import swarm
from nodes.auto import planning
from nodes.auto.own_link import OwnLink
from nodes.auto.places import AutoPlaces
from nodes.auto.planning import Planning
from nodes.config import NodeConfig
from nodes.duties.duties import go_on
from swarm.auto.document import PlanInForce, PlanSlot
from swarm.auto.plan_store import StoredPlan
from swarm.errors import Unavailable
from swarm.link.send_rate import SendRate


class Rig:
    """A `Planning` without a mesh. follows: calls of `follow_config`."""

    def __init__(self) -> None:
        self.follows: list[Any] = []
        self.told: list[str] = []
        self.places = AutoPlaces()
        config = NodeConfig("auto", "m", no_cache=True)
        subjects = SimpleNamespace(config_bucket="c")
        link = SimpleNamespace(connected=False, send_rate=SendRate())
        mesh = SimpleNamespace(link=link, subjects=subjects, follow_config=self.follows.append)
        events = SimpleNamespace(tell=lambda kind, detail: self.told.append(kind))
        connection: Any = SimpleNamespace(
            mesh=mesh, config=config, peers=None, membership=None, events=events
        )
        versions: Any = SimpleNamespace(loader=SimpleNamespace(artifacts=None), all=list)
        self.planning = Planning(connection, versions, self.places)

    def tend(self, measured: asyncio.Task[list[int]]) -> Any:
        tended = planning._Tended((), measured)  # noqa: SLF001
        self.planning._tended["1"] = tended  # noqa: SLF001
        return tended


async def test_after_a_defect_it_goes_on_measuring_and_follows_the_mesh_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nodes.duties.duties.BEGIN_AGAIN_AFTER", 0.0)
    rig, looks = Rig(), 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            raise ValueError("a defect")

    monkeypatch.setattr(rig.planning, "_look", look)
    measured = asyncio.create_task(asyncio.Event().wait())
    rig.tend(measured)  # type: ignore[arg-type]
    duty = asyncio.create_task(
        go_on("planning", rig.planning.run, lambda kind, detail: rig.told.append(kind))
    )
    await eventually(lambda: looks > 1, "it looks again")
    assert not measured.cancelled()
    assert (len(rig.follows), rig.told) == (1, ["rejected"])
    duty.cancel()
    await asyncio.gather(duty, measured, return_exceptions=True)
    assert measured.cancelled()


async def test_a_stage_that_fails_while_a_plan_with_fewer_slots_comes_ends_nothing() -> None:
    rig = Rig()
    tended = rig.tend(asyncio.create_task(asyncio.sleep(0, [1])))
    tended.slot = 1
    tended.stored = StoredPlan(PlanInForce("m", "1", 2, (PlanSlot(1, 2, need=1 << 30),)), 1)
    rig.places.failed("1", 2, MemoryError("no room"))
    assert rig.told == ["rejected"]
    await tended.measured


async def test_an_error_of_one_version_leaves_the_others_tended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, tended = Rig(), []
    servings = [
        SimpleNamespace(info=SimpleNamespace(version=version), servers=[]) for version in "123"
    ]
    monkeypatch.setattr(rig.planning._versions, "all", lambda: servings, raising=False)  # noqa: SLF001

    async def tend(serving: Any, changed: bool) -> None:
        tended.append(serving.info.version)
        if serving.info.version == "1":
            raise Unavailable("the plan was changed meanwhile")

    monkeypatch.setattr(rig.planning, "_tend", tend)
    monkeypatch.setattr(rig.planning, "_write_device", lambda: None)
    duty = asyncio.create_task(rig.planning.run())
    await eventually(lambda: len(tended) >= 6, "it looks again")
    duty.cancel()
    assert tended[:6] == ["1", "2", "3"] * 2
    assert not duty.done()
    await asyncio.gather(duty, return_exceptions=True)


async def test_probing_the_link_does_not_turn(tmp_path: Path) -> None:
    await none_turn({"own link": lambda client, _: OwnLink(lambda: client.link).run()}, tmp_path)


async def test_a_node_that_plans_does_not_turn(url: str) -> None:
    async with swarm.connect(url) as client:
        await serve_digits(client)
        await end_idle([node_of("auto", url), node_of("fallback", url)])
