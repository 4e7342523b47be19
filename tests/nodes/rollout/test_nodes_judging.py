"""A node as a judge of its model's rollout: what its status tells of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.waiting import GENEROUS

import nodes.rollout.judging
from nodes.config import NodeConfig
from nodes.rollout.judging import Judging
from swarm.fleet.documents import Faults, read_status
from swarm.rollout import GuardCounts, RolloutReport, plan_of
from swarm.rollout.followed import FollowedRollout
from swarm.rollout.judge import MOST_REPORTERS
from swarm.subjects import Subjects

PLAN = plan_of("p1", "2", "10%", "30%/10s", "errors<1%", samples=20)


class Scene:
    """One judge of one rollout. `heard` gets the requesters' reports."""

    def __init__(self) -> None:
        self.followed = FollowedRollout(PLAN, "1", 0.0, 0.0)
        self.heard: asyncio.Future[Callable[[SimpleNamespace], None]] = (
            asyncio.get_running_loop().create_future()
        )
        mesh = SimpleNamespace(
            rollouts=SimpleNamespace(of=lambda model: self.followed),
            subjects=Subjects(),
            link=SimpleNamespace(
                subscribe=lambda subject, callback: self.heard.set_result(callback),
                unsubscribe=lambda sid: None,
                publish=lambda subject, data: None,
            ),
        )
        versions = SimpleNamespace(all=list, serving={})
        connection: Any = SimpleNamespace(
            mesh=mesh,
            config=NodeConfig("shard-1", "m"),
            id="node",
            events=SimpleNamespace(tell=lambda kind, detail: None),
        )
        self.judging = Judging(connection, versions)  # type: ignore[arg-type]


async def test_a_judge_tells_how_many_reports_it_had_no_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nodes.rollout.judging, "beat", lambda seconds: asyncio.sleep(0))
    scene = Scene()
    life = asyncio.create_task(scene.judging.run())
    scene.judging.desired_state_was_read()
    report = await asyncio.wait_for(scene.heard, GENEROUS)
    for number in range(MOST_REPORTERS + 3):
        told = RolloutReport(f"r{number}", "p1", 0, (GuardCounts(1, 0),), (GuardCounts(1, 0),))
        report(SimpleNamespace(data=told.encode()))
    status = scene.judging.status()
    assert status["rollout"]["reports_refused"] == 3
    doc = {"v": 1, "node": "n", "role": "shard-1", "state": "ready"} | status
    assert read_status(json.dumps(doc).encode(), "n") == (doc, Faults())
    assert not life.done()
    life.cancel()
    await asyncio.gather(life, return_exceptions=True)
