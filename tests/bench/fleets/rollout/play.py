"""The phases: promote, canary, rollback, broken guard, shadow that disagrees; a kill in each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.fleets.rollout.load import Load
from bench.fleets.rollout.versions import Version, make_versions
from bench.report.figure import percentile
from bench.report.machine import machine

from nodes.up.mesh import LocalMesh, local_mesh, push
from nodes.versions.lanes import lanes_maker
from swarm.errors import Unavailable
from swarm.ids import ulid
from swarm.models.followed_rollouts import Followed
from swarm.rollout import Plan, plan_of

ROLES = ("shard-1", "shard-2", "shard-3", "fallback")
READY_TIMEOUT = 60.0  # seconds
PHASE_TIMEOUT = 40.0  # seconds for a rollout to come to its end
SETTLE = 6.0  # seconds behind a phase: nodes let a version go, a killed one is back
SAMPLES = 20
STEP = "30%/1s"  # from 10 %: four steps
# No version answers so fast: its canary breaks the guard from its first request on.
UNREACHABLE = "p99<1us"


@dataclass(frozen=True)
class RolloutPlan:
    """rate: requests a second. quiet: seconds of load before each phase, to compare with. kills:
    whether a node is killed in the middle of each phase."""

    rate: float = 100.0
    quiet: float = 3.0
    kills: bool = True


class Stage:
    """The mesh, the load on it, and what is done to it."""

    def __init__(
        self, plan: RolloutPlan, local: LocalMesh, load: Load, progress: Callable[[str], None]
    ) -> None:
        self._plan = plan
        self._local = local
        self._load = load
        self._progress = progress
        self.figures: dict[str, dict[str, Any]] = {}

    async def quiet(self) -> None:
        """The load alone, while every node is ready."""
        await self._local.ready(READY_TIMEOUT)
        self._progress("quiet …")
        self._load.enter("quiet")
        await asyncio.sleep(self._plan.quiet)

    def begin(self, name: str) -> dict[str, Any]:
        """A phase begins; returns where its own figures go."""
        self._progress(f"{name} …")
        self._load.enter(name)
        return self.figures.setdefault(name, {})

    async def kill(self, role: str, figures: dict[str, Any]) -> None:
        """kill -9; the supervisor starts the node again."""
        if not self._plan.kills:
            return
        node = next(node for node in self._local.supervisor.nodes if node.role == role)
        if node.process is not None:
            node.process.kill()
        figures["killed"] = role

    async def promote(self) -> None:
        await self.quiet()
        figures = self.begin("promote")
        began = time.monotonic()
        await self._local.mesh.registry.promote("digits", "2")
        await self.kill("shard-2", figures)
        await self._until_served("2")
        figures["seconds"] = round(time.monotonic() - began, 2)
        await asyncio.sleep(SETTLE)

    async def rollback(self, name: str, role: str) -> None:
        """Back to version 1."""
        await self.quiet()
        figures = self.begin(name)
        began = time.monotonic()
        await self._local.mesh.registry.rollback("digits")
        await self.kill(role, figures)
        await self._until_served("1")
        figures["seconds"] = round(time.monotonic() - began, 2)
        await asyncio.sleep(SETTLE)

    async def canary(self) -> None:
        """A good version gets all traffic by its plan."""
        await self.quiet()
        figures = self.begin("canary")
        began = time.monotonic()
        guards = "p99<2s,errors<5%,agree>0.9"
        followed = await self._roll_out(self._rollout("2", guards, step=STEP, shadow="20%"))
        await self._until(lambda: followed.progress.step >= 1, "the first step")
        await self.kill("shard-3", figures)
        await self._until(lambda: followed.progress.done, "the end of the rollout")
        figures["seconds"] = round(time.monotonic() - began, 2)
        await asyncio.sleep(SETTLE)

    async def breach(self) -> None:
        """A version whose guard breaks at once is gone by itself."""
        await self.quiet()
        figures = self.begin("guard breach")
        followed = await self._roll_out(self._rollout("2", UNREACHABLE, step="10%/1m"))
        await self._until(lambda: followed.tally.total()[0].n >= SAMPLES, "its samples")
        await self._broken(followed, figures, "shard-1")

    async def shadow(self) -> None:
        """A version that answers otherwise is found out by copies of requests."""
        await self.quiet()
        figures = self.begin("shadow")
        plan = self._rollout("3", "agree>0.9", canary="1%", step="1%/1m", shadow="50%")
        followed = await self._roll_out(plan)
        await self._until(lambda: followed.tally.total()[0].n >= SAMPLES, "its samples")
        await self._broken(followed, figures, "shard-2")
        figures["compared"] = self._local.mesh.shadows.compared
        figures["dropped"] = self._local.mesh.shadows.dropped
        figures["not_compared"] = self._local.mesh.shadows.failed

    async def _broken(self, followed: Followed, figures: dict[str, Any], role: str) -> None:
        enough = time.monotonic()
        await self.kill(role, figures)
        await self._until(lambda: followed.progress.aborted, "the way back")
        figures["back_within_s"] = round(time.monotonic() - enough, 2)
        figures["reason"] = followed.reason
        await asyncio.sleep(SETTLE)

    def _rollout(self, version: str, guard: str, canary: str = "10%", **more: str) -> Plan:
        return plan_of(ulid(), version, canary, guard=guard, samples=SAMPLES, **more)

    async def _roll_out(self, plan: Plan) -> Followed:
        """Returns the rollout as the requester sees it, with its first share."""
        rollouts = self._local.mesh.rollouts
        await self._local.mesh.registry.roll_out("digits", plan)

        def begun() -> bool:
            followed = rollouts.of("digits")
            return followed is not None and followed.plan == plan and followed.progress.step >= 0

        await self._until(begun, "the canary")
        followed = rollouts.of("digits")
        assert followed is not None
        return followed

    async def _until_served(self, version: str) -> None:
        """Until the next answers are of that version alone."""
        phase = self._load.enter(next(reversed(self._load.phases)))
        before = phase.versions[version]
        await self._until(lambda: phase.versions[version] > before + 20, f"version {version}")

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Raises `Unavailable` where it does not come true in good time."""
        try:
            async with asyncio.timeout(PHASE_TIMEOUT):
                while not condition():  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise Unavailable(f"not within {PHASE_TIMEOUT:.0f} s: {what}") from None


async def play(plan: RolloutPlan, progress: Callable[[str], None]) -> dict[str, Any]:
    """All phases; returns the document. Raises `Unavailable`."""
    progress("splitting three versions …")
    versions = await asyncio.to_thread(make_versions)
    async with local_mesh(name="rollout") as local:
        await _push(local, versions)
        for role in ROLES:
            local.start(role, "digits")
        await local.ready(READY_TIMEOUT)
        logits = {name: version.logits for name, version in versions.items()}
        load = Load(local.mesh, plan.rate, logits)
        load.enter("start")
        running = asyncio.create_task(load.run())
        stage = Stage(plan, local, load, progress)
        try:
            await asyncio.sleep(1.0)
            await stage.promote()
            await stage.rollback("rollback", "shard-1")
            await stage.canary()
            await stage.rollback("rollback of a rollout", "fallback")
            await stage.breach()
            await stage.shadow()
        finally:
            load.stop()
            await running
    quiet = load.phases.pop("quiet")
    del load.phases["start"]
    p99 = percentile(quiet.latencies, 0.99)
    phases = {"quiet": quiet.document(p99)}
    for name, phase in load.phases.items():
        phases[name] = stage.figures[name] | phase.document(p99)
    return {
        "v": 1,
        "bench": "rollout",
        "rate_per_s": plan.rate,
        "kills": plan.kills,
        "machine": machine(),
        "phases": phases,
    }


async def _push(local: LocalMesh, versions: dict[str, Version]) -> None:
    first, *others = versions.values()
    await push(local, first.split.manifest.to_json(), first.split.files)
    for version in others:
        await local.mesh.registry.push(
            version.split.manifest.to_json(),
            version.split.files,
            prepare=lanes_maker(local.mesh),
        )
