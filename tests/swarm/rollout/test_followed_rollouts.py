"""Rollouts in the registry, and the versions that requests, agents and sessions get by them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from manifests import manifest
from real_server import Links, cut, hang, resume
from support.waiting import GENEROUS, eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import InvalidArgument, NotFound, Status
from swarm.fleet.placement import Served
from swarm.link import Link, jetstream
from swarm.model import ModelInfo
from swarm.models.catalog import Catalog
from swarm.models.registry import Registry
from swarm.rollout import GuardCounts, RolloutPlan, RolloutReport, Statement, Verdict, plan_of
from swarm.rollout.followed import REPORT_EVERY
from swarm.rollout.rollouts import Rollouts, abort, roll_out
from swarm.rollout.subjects import RolloutSubjects

pytestmark = pytest.mark.integration
SUBJECTS = RolloutSubjects("test")
NONE = (GuardCounts(), GuardCounts())


def plan(id: str = "p1", version: str = "2", **more: Any) -> RolloutPlan:
    words: dict[str, Any] = {"step": "40%/10s", "guard": "p99<20ms,errors<1%", "samples": 5}
    return plan_of(id, version, "20%", **(words | more))


class Scene:
    """A registry with three versions, of which the first serves; a requester's view of it."""

    def __init__(self, link: Link) -> None:
        self.now = 1000.0
        self.link = link
        self.registry = Registry(link, SUBJECTS)
        self.rollouts = Rollouts(link, SUBJECTS, clock=lambda: self.now)
        self.served = {"1", "2", "3"}
        self.catalog = Catalog(self.registry, self.rollouts, self.nodes_of, lambda: self.now)

    def nodes_of(self, info: ModelInfo) -> Served:
        return Served.BY_PRIMARIES if info.version in self.served else Served.NOWHERE

    async def prepare(self) -> Scene:
        for version in "123":
            await self.registry.push(manifest(version), {})
        return self

    async def begin(self, plan: RolloutPlan) -> None:
        await roll_out(self.registry, "m", plan)
        self.catalog.forget()
        await self.catalog.model("m", request_id="first")

    def state(self, held: float, plan: str = "p1") -> None:
        """A judge states that the guards have held for so long."""
        good = (Verdict.GOOD, Verdict.GOOD)
        followed = self.rollouts.of("m")
        assert followed is not None
        self.now += held
        followed.heard(Statement("j", plan, True, held, Verdict.GOOD, good, NONE, NONE), self.now)

    async def versions(self, agent: str = "", session: str = "", count: int = 200) -> Counter[str]:
        """Of so many requests."""
        infos = [await self.catalog.model("m", agent, session, f"r{n}") for n in range(count)]
        return Counter(info.version for info in infos)


@pytest.fixture
async def scene(server: EmbeddedServer, links: Links) -> Scene:
    return await Scene(await links.connect(server.url)).prepare()


async def test_requests_go_by_the_share_and_all_back_at_an_abort(scene: Scene) -> None:
    await scene.begin(plan())
    assert await scene.versions() == {"1": 200}, "nobody has said that nodes serve it"
    scene.state(0.0)
    assert 20 <= (await scene.versions())["2"] <= 60
    scene.state(10.0)
    assert 90 <= (await scene.versions())["2"] <= 150
    assert await abort(scene.link, SUBJECTS, "m", "p1", "n", "too slow")
    assert not await abort(scene.link, SUBJECTS, "m", "p1", "other", "later"), (
        "the first word counts"
    )
    value = json.dumps({"reason": "too slow"}).encode()
    assert scene.rollouts.aborted("swarm.test.config.abort.m.p1", value)
    assert await scene.versions() == {"1": 200}
    late = await Scene(scene.link).prepare()
    assert await late.versions() == {"1": 200}
    followed = late.rollouts.of("m")
    assert followed is not None
    assert followed.reason == "too slow"


async def test_an_abort_counts_whatever_its_key_holds(scene: Scene) -> None:
    await scene.begin(plan())
    key = "abort.m.p1"
    await jetstream.kv_put(
        scene.link, SUBJECTS.config_bucket, key, b"", more={"KV-Operation": "DEL"}
    )
    assert await scene.registry.aborted("m", "p1")
    assert not await scene.registry.aborted("m", "p2")


async def test_a_session_keeps_its_version_while_that_serves(scene: Scene) -> None:
    sessions = [f"s{n}" for n in range(40)]
    for session in sessions:
        assert await scene.versions("", session, 1) == {"1": 1}
    await scene.begin(plan())
    scene.state(0.0)
    scene.state(10.0)
    for session in sessions:
        assert set(await scene.versions("", session, 3)) == {"1"}
    fresh = {f"f{n}": await scene.versions("", f"f{n}", 3) for n in range(40)}
    assert all(len(versions) == 1 for versions in fresh.values())
    assert {next(iter(versions)) for versions in fresh.values()} == {"1", "2"}
    scene.state(30.0)  # the rollout is done
    for session in sessions:
        assert set(await scene.versions("", session, 3)) == {"2"}


async def test_sessions_of_a_version_that_was_rolled_back_go_back(scene: Scene) -> None:
    await scene.begin(plan())
    scene.state(0.0)
    scene.state(10.0)
    on_new = [f"s{n}" for n in range(40) if "2" in await scene.versions("", f"s{n}", 1)]
    assert on_new
    scene.rollouts.aborted("swarm.test.config.abort.m.p1", b"{}")
    for session in on_new:
        assert await scene.versions("", session, 2) == {"1": 2}


async def test_a_pinned_agent_keeps_its_version_through_a_rollout(scene: Scene) -> None:
    await scene.registry.pin("m", "old", "1")
    await scene.registry.pin("m", "brave", "3")
    with pytest.raises(NotFound):
        await scene.registry.pin("m", "lost", "77")
    await scene.begin(plan())
    scene.state(0.0)
    scene.state(40.0)
    assert await scene.versions("old") == {"1": 200}
    assert await scene.versions("brave", "s1") == {"3": 200}
    assert await scene.versions("else") == {"2": 200}
    await scene.registry.pin("m", "old", "")
    scene.catalog.forget()
    assert await scene.versions("old") == {"2": 200}


async def test_one_rollout_runs_at_a_time_and_its_end_is_kept(scene: Scene) -> None:
    registry = scene.registry
    assert await roll_out(registry, "m", plan()) == "1"
    with pytest.raises(InvalidArgument, match="a rollout of m@2 runs"):
        await roll_out(registry, "m", plan("p2", "3"))
    assert await roll_out(registry, "m", plan("p2", "3"), done="p1") == "2", "it was done: 2 serves"
    assert await registry.rollback("m") == "2", "back to the version from which it began"
    assert await registry.serving("m") == "2"
    await roll_out(registry, "m", plan("p3", "3"))
    await abort(scene.link, SUBJECTS, "m", "p3", "n", "slow")
    assert await roll_out(registry, "m", plan("p4", "3")) == "2", "an aborted one is over"
    assert await registry.promote("m", "3") == "2"
    present = await registry.desired("m")
    assert present is not None
    assert "rollout" not in present


async def test_a_rollout_that_cannot_be_changes_nothing(scene: Scene) -> None:
    before = await scene.registry.desired("m")
    with pytest.raises(NotFound):
        await roll_out(scene.registry, "m", plan(version="77"))
    with pytest.raises(InvalidArgument, match="serves already"):
        await roll_out(scene.registry, "m", plan(version="1"))
    with pytest.raises(NotFound):
        await roll_out(scene.registry, "unknown", plan())
    assert await scene.registry.desired("m") == before


async def test_behind_a_rollout_that_is_taken_back_requests_keep_to_it_until_nodes_serve_the_other(
    scene: Scene,
) -> None:
    await scene.begin(plan())
    scene.state(0.0)
    scene.state(40.0)
    assert await scene.versions() == {"2": 200}, "the rollout is done"
    scene.served = {"2"}
    await scene.registry.rollback("m")
    scene.catalog.forget()
    assert await scene.versions() == {"2": 200}, "no node has loaded version 1 again"
    scene.served = {"1", "2"}
    assert await scene.versions() == {"1": 200}


async def test_a_rollout_under_way_that_is_taken_back_keeps_nobody(scene: Scene) -> None:
    await scene.begin(plan())
    scene.state(0.0)
    scene.state(10.0)
    scene.served = {"2"}
    await scene.registry.rollback("m")
    scene.catalog.forget()
    assert await scene.versions() == {"1": 200}


async def test_requests_keep_to_the_version_before_until_nodes_serve_the_next(
    scene: Scene,
) -> None:
    scene.served = {"1"}
    assert await scene.versions(count=3) == {"1": 3}
    await scene.registry.promote("m", "2")
    scene.catalog.forget()
    assert await scene.versions(count=3) == {"1": 3}
    scene.served = {"1", "2"}
    assert await scene.versions(count=3) == {"2": 3}
    await scene.registry.promote("m", "3")
    scene.catalog.forget()
    assert await scene.versions(count=3) == {"2": 3}
    scene.now += 31.0
    assert await scene.versions(count=3) == {"3": 3}, "it is not waited for without end"


async def test_what_is_observed_is_reported_and_a_guard_broken_here_stops_at_once(
    scene: Scene, links: Links, server: EmbeddedServer
) -> None:
    reports: list[RolloutReport] = []
    judge = await links.connect(server.url)
    reports_of = SUBJECTS.reports_all("m")
    judge.subscribe(reports_of, lambda m: reports.append(RolloutReport.decode(m.data)))
    await judge.flush()
    await scene.begin(plan())
    scene.state(0.0)
    for _ in range(5):
        assert scene.rollouts.answered("m", "2", 0.5, Status.INTERNAL) == "1", "ask version 1"
    assert scene.rollouts.answered("m", "2", 0.001, Status.INVALID_ARGUMENT) == ""
    assert scene.rollouts.answered("m", "1", 0.001, Status.OK) == ""
    scene.now += 2 * REPORT_EVERY
    scene.rollouts.answered("m", "1", 0.001, Status.OK)
    await eventually(
        lambda: bool(reports) and reports[-1].total == (GuardCounts(5, 5), GuardCounts(5, 5))
    )
    assert await scene.versions() == {"1": 200}


async def test_what_no_lane_took_and_what_no_server_could_answer_is_no_evidence(
    scene: Scene, own_server: EmbeddedServer
) -> None:
    await scene.begin(plan())
    scene.state(0.0)
    followed = scene.rollouts.of("m")
    assert followed is not None
    for status in (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED):
        scene.rollouts.answered("m", "2", 0.5, status, reached=False)
    await hang(own_server)
    try:
        scene.rollouts.answered("m", "2", 0.5, Status.DEADLINE_EXCEEDED)
        await asyncio.sleep(0)
        assert followed.tally.total() == NONE, "the link may be cut without a word"
    finally:
        resume(own_server)
    # The server is there after all, so that it was the version that did not answer.
    await eventually(lambda: followed.tally.total() == (GuardCounts(1, 1), GuardCounts(1, 1)))
    cut(scene.link)
    scene.rollouts.answered("m", "2", 0.5, Status.DEADLINE_EXCEEDED)
    await eventually(lambda: not scene.link.connected)
    await scene.link.ready(GENEROUS)
    await scene.link.flush()
    assert followed.tally.total() == (GuardCounts(1, 1), GuardCounts(1, 1))
