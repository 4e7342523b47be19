"""A new version proves itself under live traffic, or is gone again: real nodes, real requests."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import Command, Commands
from support.meshes import READY, digits, split_digits
from support.waiting import eventually

from nodes.up.mesh import LocalMesh, local_mesh, push
from shards.split.split import SplitResult, split
from swarm import Result, Status
from swarm.errors import InvalidArgument
from swarm.ids import ulid
from swarm.rollout import RolloutPlan, plan_of
from swarm.rollout.followed import FollowedRollout
from swarm.rollout.rollouts import roll_out, rollout_of

pytestmark = [pytest.mark.integration, pytest.mark.processes]

RATE = 30.0  # requests a second
SESSIONS = 12
STEPS = "45%/1s"  # 10, 55, 100 %
SAMPLES = 10


def plan(version: str, guard: str = "", step: str = STEPS, **more: Any) -> RolloutPlan:
    return plan_of(ulid(), version, "10%", step, guard, samples=SAMPLES, **more)


class Traffic:
    """Requests at a pace: some alone, some of sessions, some pinned to version 1."""

    def __init__(self, local: LocalMesh) -> None:
        self.mesh = local.mesh
        self.alone: list[tuple[float, Result]] = []
        self.sessions: dict[str, list[str]] = {}  # the versions that answered, in order
        self.pinned: list[Result] = []
        self.failed: list[str] = []
        self.mixed = 0
        self.pins = True  # nodes let a version go that only requests name
        self._going = True

    async def run(self) -> None:
        """Until `stop`; then every request has ended."""
        began, number = time.monotonic(), 0
        async with asyncio.TaskGroup() as group:
            while self._going:
                await asyncio.sleep(max(0.0, began + number / RATE - time.monotonic()))
                group.create_task(self._one(number))
                number += 1

    def stop(self) -> None:
        self._going = False

    async def _one(self, number: int) -> None:
        images, logits = digits()
        at = number % len(images)
        image = {"image": images[at : at + 1]}
        session = f"s{number // 3 % SESSIONS}" if number % 3 == 0 else ""
        name = "digits@1" if number % 3 == 1 and self.pins else "digits"
        began = time.monotonic()
        result = await self.mesh.ask(name, image, 5.0, session)
        if result.status is not Status.OK:
            self.failed.append(f"{result.version}: {result.status}: {result.message}")
            return
        # Version 2 gives twice the logits: a stage of the other version gives neither.
        factor = {"1": 1.0, "2": 2.0}[result.version]
        if not np.allclose(result.outputs["logits"], logits[at : at + 1] * factor, atol=1e-3):
            self.mixed += 1
        if session:
            self.sessions.setdefault(session, []).append(result.version)
        elif name == "digits@1":
            self.pinned.append(result)
        else:
            self.alone.append((began, result))

    def versions_since(self, moment: float) -> Counter[str]:
        return Counter(result.version for began, result in self.alone if began >= moment)


def doubled() -> SplitResult:
    """Version 2: the same network, with the last layer's weights doubled."""
    import onnx
    from onnx import numpy_helper

    from shards.zoo import digits_model

    model = onnx.load_from_string(digits_model())
    for tensor in model.graph.initializer:
        if tensor.name.startswith("logits."):
            array = numpy_helper.to_array(tensor) * np.float32(2)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return split(model.SerializeToString(), name="digits", version="2", stages=3, bandwidth=1e6)


async def answered(traffic: Traffic, since: float, count: int) -> Counter[str]:
    """The versions that answered requests asked after a moment, once there are so many."""
    enough = lambda: sum(traffic.versions_since(since).values()) >= count  # noqa: E731
    await eventually(enough, f"{count} answers")
    return traffic.versions_since(since)


async def followed_by(local: LocalMesh, plan: RolloutPlan) -> FollowedRollout:
    """The rollout as the requester sees it, with its first share."""
    await roll_out(local.mesh.registry, "digits", plan)

    def begun() -> bool:
        followed = rollout_of(local.mesh.rollouts, "digits")
        return followed is not None and followed.plan == plan and followed.progress.step >= 0

    await eventually(begun, "the canary begins")
    followed = rollout_of(local.mesh.rollouts, "digits")
    assert followed is not None
    return followed


def status(run: Commands, local: LocalMesh, *more: str) -> Command:
    return run.swarm("model", "status", "digits", "--nats", local.url, "--mesh", local.name, *more)


@pytest.mark.benchmark  # a whole story, longer than ten seconds
async def test_a_bad_version_is_gone_by_itself_and_a_good_one_gets_all_traffic(
    run: Commands,
) -> None:
    async with local_mesh() as local:
        for result in (split_digits("1"), doubled()):
            await push(local, result.manifest.to_json(), result.files)
        await local.mesh.registry.promote("digits", "1")
        for role in ("shard-1", "shard-2", "shard-3"):
            local.start(role, "digits")
        await local.ready(READY)
        traffic = Traffic(local)
        running = asyncio.create_task(traffic.run())
        await eventually(lambda: len(traffic.sessions) == SESSIONS, "each session has asked", READY)
        await breach(local, traffic, run)
        await success(local, traffic)
        traffic.stop()
        await running
        assert traffic.failed == []
        assert traffic.mixed == 0
        assert {result.version for result in traffic.pinned} == {"1"}


async def breach(local: LocalMesh, traffic: Traffic, run: Commands) -> None:
    events: list[dict[str, Any]] = []
    local.mesh.link.subscribe(
        local.mesh.subjects.event("rolled-back"), lambda m: events.append(json.loads(bytes(m.data)))
    )
    # Nothing is that fast: every request of the new version is a breach.
    followed = await followed_by(local, plan("2", "p99<10us", "10%/5m"))
    await eventually(lambda: followed.progress.aborted, "the rollout goes back")
    assert set(await answered(traffic, time.monotonic(), 30)) == {"1"}
    await eventually(lambda: len(events) > 0, "an event says so")
    assert "p99<10us" in events[0]["detail"]
    shown = await asyncio.to_thread(status, run, local)
    assert shown.process.returncode == 1
    assert "was rolled back: guard p99<10us is broken" in shown.stdout


async def success(local: LocalMesh, traffic: Traffic) -> None:
    guards = "errors<50%,agree>0.5"  # how long a request takes here is the machine's affair
    followed = await followed_by(local, plan("2", guards, shadow="50%"))
    with pytest.raises(InvalidArgument, match="runs: wait for its end"):
        await roll_out(local.mesh.registry, "digits", plan("2"))
    await eventually(lambda: followed.progress.step >= 1, "a step is made")
    assert set(await answered(traffic, time.monotonic(), 30)) == {"1", "2"}
    assert local.mesh.rollouts.shadows.compared > 0
    assert all(set(versions) == {"1"} for versions in traffic.sessions.values())
    traffic.pins = False
    await eventually(lambda: followed.progress.done, "the rollout is done")
    assert set(await answered(traffic, time.monotonic(), 20)) == {"2"}
    assert await local.mesh.registry.rollback("digits") == "1"


@pytest.mark.asyncio(loop_scope="session")
async def test_a_rollout_of_a_version_that_is_not_there_is_one_line_and_changes_nothing(
    digits_mesh: LocalMesh, run: Commands, tmp_path: Path
) -> None:
    before = await digits_mesh.mesh.registry.desired("digits")
    command = run.start(
        "nodes.cli.main",
        *("model", "promote", "digits@7", "--canary", "10%"),
        *("--nats", digits_mesh.url, "--mesh", digits_mesh.name),
        env={"XDG_CONFIG_HOME": str(tmp_path)},
    )
    assert await asyncio.to_thread(command.wait) == 1
    [line] = command.stderr.strip().splitlines()
    assert "swarm model list" in line
    assert await digits_mesh.mesh.registry.desired("digits") == before
