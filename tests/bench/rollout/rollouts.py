"""The phases: promote, canary, rollback, broken guard, shadow that disagrees; a kill in each."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.table import Table
from support.meshes import mesh_of

import swarm
from bench.paced import paced
from bench.report.figure import percentile
from bench.report.frame import Benchmark, Progress
from bench.rollout.versions import IMAGES, Version, images, make_versions, matches
from nodes.console import out
from nodes.up.mesh import LocalMesh, push
from nodes.versions.lanes import lanes_maker
from swarm.errors import Status, Unavailable
from swarm.ids import ulid
from swarm.rollout import RolloutPlan, plan_of
from swarm.rollout.followed import FollowedRollout
from swarm.rollout.rollouts import Rollouts, roll_out, rollout_of

BUDGET = 5.0  # seconds for a request
SESSIONS = 16
SESSION_EVERY = 4  # each so-manieth request is of a session


@dataclass
class Phase:
    """What became of the requests that were asked in one phase. Latencies in seconds.

    wrong: answers that are not those of the version that they name; mixed: of these, the ones that
    no version gives. moved: sessions' answers by another version than the one before.
    """

    requests: int = 0
    lost: int = 0
    wrong: int = 0
    mixed: int = 0
    moved: int = 0
    latencies: list[float] = field(default_factory=list)
    versions: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def document(self, quiet_p99: float) -> dict[str, Any]:
        """quiet_p99: seconds, of the same load while nothing happens."""
        p99 = percentile(self.latencies, 0.99)
        document = {
            "requests": self.requests,
            "lost": self.lost,
            "wrong": self.wrong,
            "mixed": self.mixed,
            "sessions_moved": self.moved,
            "by_version": dict(sorted(self.versions.items())),
            "p50_ms": round(percentile(self.latencies, 0.5) * 1e3, 2),
            "p99_ms": round(p99 * 1e3, 2),
            "p99_ratio": round(p99 / quiet_p99, 2) if quiet_p99 else 0.0,
        }
        if self.reasons:
            document["reasons"] = dict(self.reasons.most_common(3))
        return document


class Load:
    """Asks `rate` times a second from `run` on, until `stop`. logits: by version, [IMAGES, 10]."""

    def __init__(self, mesh: swarm.Mesh, rate: float, logits: Mapping[str, np.ndarray]) -> None:
        self.phases: dict[str, Phase] = {}
        self._mesh = mesh
        self._rate = rate
        self._logits = logits
        self._images = images()
        self._phase = Phase()
        self._sessions: dict[str, str] = {}
        self._going = True

    def enter(self, name: str) -> Phase:
        """Requests from now on are of this phase; one that was left may be entered again."""
        self._phase = self.phases.setdefault(name, Phase())
        self._sessions = {}
        return self._phase

    def stop(self) -> None:
        """Ask no more; `run` returns when each request has ended."""
        self._going = False

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            async for number, _ in paced(self._rate):
                if not self._going:
                    return
                group.create_task(self._ask(number, self._phase))

    async def _ask(self, number: int, phase: Phase) -> None:
        at = number % IMAGES
        session = f"s{number % SESSIONS}" if number % SESSION_EVERY == 0 else ""
        phase.requests += 1
        image = {"image": self._images[at : at + 1]}
        began = time.monotonic()
        result = await self._mesh.ask("digits", image, BUDGET, session)
        phase.latencies.append(time.monotonic() - began)
        if result.status is not Status.OK:
            phase.lost += 1
            phase.reasons[f"{result.version}: {result.status}: {result.message[:120]}"] += 1
            return
        phase.versions[result.version] += 1
        given = result.outputs["logits"]
        right = {v for v, logits in self._logits.items() if matches(given, logits[at : at + 1])}
        phase.wrong += result.version not in right
        phase.mixed += not right
        if session and phase is self._phase:
            phase.moved += self._sessions.get(session, result.version) != result.version
            self._sessions[session] = result.version


ROLES = ("shard-1", "shard-2", "shard-3", "fallback")
READY_TIMEOUT = 60.0  # seconds
PHASE_TIMEOUT = 40.0  # seconds for a rollout to come to its end
SETTLE = 6.0  # seconds behind a phase: nodes let a version go, a killed one is back
SAMPLES = 20
STEP = "30%/1s"  # from 10 %: four steps
# No version answers so fast: its canary breaks the guard from its first request on.
UNREACHABLE = "p99<1us"


@dataclass(frozen=True)
class RolloutBench:
    """rate: requests a second. quiet: seconds of load before each phase, to compare with. kills:
    whether a node is killed in the middle of each phase."""

    rate: float = 100.0
    quiet: float = 3.0
    kills: bool = True


class Stage:
    """The mesh, the load on it, and what is done to it."""

    def __init__(
        self, plan: RolloutBench, local: LocalMesh, load: Load, progress: Progress
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
        await self._until(lambda: _is_judged(followed), "its samples")
        await self._broken(followed, figures, "shard-1")

    async def shadow(self) -> None:
        """A version that answers otherwise is found out by copies of requests."""
        await self.quiet()
        figures = self.begin("shadow")
        plan = self._rollout("3", "agree>0.9", canary="1%", step="1%/1m", shadow="50%")
        followed = await self._roll_out(plan)
        await self._until(lambda: _is_judged(followed), "its samples")
        await self._broken(followed, figures, "shard-2")
        rollouts = self._local.mesh.rollouts
        assert isinstance(rollouts, Rollouts)
        figures["compared"] = rollouts.shadows.compared
        figures["dropped"] = rollouts.shadows.dropped
        figures["not_compared"] = rollouts.shadows.failed

    async def _broken(self, followed: FollowedRollout, figures: dict[str, Any], role: str) -> None:
        enough = time.monotonic()
        await self.kill(role, figures)
        await self._until(lambda: followed.progress.aborted, "the way back")
        figures["back_within_s"] = round(time.monotonic() - enough, 2)
        figures["reason"] = followed.reason
        await asyncio.sleep(SETTLE)

    def _rollout(self, version: str, guard: str, canary: str = "10%", **more: str) -> RolloutPlan:
        return plan_of(ulid(), version, canary, guard=guard, samples=SAMPLES, **more)

    async def _roll_out(self, plan: RolloutPlan) -> FollowedRollout:
        """Returns the rollout as the requester sees it, with its first share."""
        rollouts = self._local.mesh.rollouts
        await roll_out(self._local.mesh.registry, "digits", plan)

        def begun() -> bool:
            followed = rollout_of(rollouts, "digits")
            return followed is not None and followed.plan == plan and followed.progress.step >= 0

        await self._until(begun, "the canary")
        followed = rollout_of(rollouts, "digits")
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


def _is_judged(followed: FollowedRollout) -> bool:
    """Whether a guard has seen enough; what is plainly bad needs fewer samples than `SAMPLES`."""
    return followed.progress.aborted or followed.tally.total()[0].n >= SAMPLES


async def play(plan: RolloutBench, progress: Progress) -> dict[str, Any]:
    """All phases; returns the document. Raises `Unavailable`."""
    progress("splitting three versions …")
    versions = await asyncio.to_thread(make_versions)
    async with mesh_of() as local:
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
        "rate_per_s": plan.rate,
        "kills": plan.kills,
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


MOST_RATIO = 2.0  # p99 of a phase, in the quiet p99
BACK_WITHIN = 2.0  # seconds
SHOWN = ("requests", "lost", "wrong", "mixed", "p99_ms", "p99_ratio")


def misses(document: dict[str, Any]) -> list[str]:
    """The targets that a document misses, as sentences."""
    found = []
    for name, phase in document["phases"].items():
        if phase["lost"] or phase["wrong"] or phase["mixed"]:
            found.append(
                f"{name}: {phase['lost']} requests lost, {phase['wrong']} answers wrong, "
                f"{phase['mixed']} of two versions"
            )
        if phase["p99_ratio"] > MOST_RATIO:
            found.append(f"{name}: p99 is {phase['p99_ratio']} times the quiet one ({MOST_RATIO})")
        if phase.get("back_within_s", 0.0) > BACK_WITHIN:
            found.append(f"{name}: back after {phase['back_within_s']} s ({BACK_WITHIN})")
    return found


def show(document: dict[str, Any]) -> None:
    """The figures, for people."""
    shown = Table("phase", *(key.replace("_", " ") for key in SHOWN), "besides")
    for name, phase in document["phases"].items():
        besides = [
            f"{key.replace('_', ' ')} {phase[key]}"
            for key in ("killed", "seconds", "back_within_s", "compared")
            if key in phase
        ]
        shown.add_row(name, *(str(phase[key]) for key in SHOWN), ", ".join(besides))
    out.print(shown)


ROLLOUT = Benchmark("rollout", play, show, misses=misses)
