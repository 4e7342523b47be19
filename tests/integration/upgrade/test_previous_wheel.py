"""Nodes from the wheel of the previous release, beside those of the present code.

The wheel is built from this repository's history, and installed in an environment of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import pytest
from support.commands import ROOT, environment
from support.meshes import READY, Load, all_ready, dismiss, mesh_of, split_digits
from support.upgrades import (
    FIRST,
    Publisher,
    adopted_from,
    node_arguments,
    node_processes,
    running,
    updater,
)
from support.waiting import eventually

from nodes.event_loop import SUPERVISOR
from nodes.up.mesh import LocalMesh, push
from nodes.up.supervisor import NodeProcess
from nodes.upgrade.device import Phase
from nodes.upgrade.wave import Wave

pytestmark = [pytest.mark.integration, pytest.mark.processes, pytest.mark.benchmark]

PREVIOUS = "326677bda0bd49bbdec4e42eaab1723b91f52a92"  # the commit that the wheel is built from
SHARDS = ("shard-1", "shard-2", "shard-3")
BUILD_TIMEOUT = 170  # seconds


def done(*command: str, cwd: Path = ROOT) -> str:
    ran = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=BUILD_TIMEOUT, check=False
    )
    if ran.returncode:
        pytest.skip(f"no wheel of the previous release: {ran.stderr.strip()[-300:]}")
    return ran.stdout


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment with nothing but the previous release's wheel and what it needs."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None or shutil.which("git") is None:
        pytest.skip("no wheel of the previous release: there is no git, or no uv")
    tree = tmp_path_factory.mktemp("previous")
    archive = subprocess.run(["git", "archive", PREVIOUS], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"the previous release is not here: {archive.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(tree / "tree", filter="data")
    done(uv, "build", "--wheel", "--quiet", "--out-dir", str(tree / "dist"), cwd=tree / "tree")
    (wheel,) = (tree / "dist").glob("*.whl")
    folder = tree / "venv"
    done(uv, "venv", "--quiet", str(folder))
    python = str(folder / "bin" / "python")
    done(uv, "pip", "install", "--quiet", "--python", python, f"{wheel}[node]")
    yield folder
    shutil.rmtree(tree)


@dataclass
class PreviousNode(NodeProcess):
    """A node process of the previous release."""

    program: Path = field(default_factory=Path)

    def start(self) -> None:
        assert self.log_path is not None
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [self.program, *self.arguments],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                env=environment({SUPERVISOR: str(os.getpid())}),
            )


def start_previous(local: LocalMesh, folder: Path, role: str) -> NodeProcess:
    program, log = folder / "bin" / "swarm-node", local.logs / f"{role}-previous.log"
    node = PreviousNode(role, node_arguments(local, role), log, program=program)
    return local.supervisor.add(node)


def handed_over(local: LocalMesh, node: NodeProcess) -> int:
    """Messages that a node handed to the next stage's process directly."""
    stages = (local.status_of(node) or {}).get("stages", [])
    return sum(stage["counters"]["handed_over"] for stage in stages)


async def test_both_answer_gossip_hand_over_follow_a_promotion_and_cover_for_each_other(
    previous: Path,
) -> None:
    result = split_digits()
    async with mesh_of() as local:
        await push(local, result.manifest.to_json(), result.files)
        nodes = {role: start_previous(local, previous, role) for role in (*SHARDS, "fallback")}
        await local.ready(READY)
        load = Load(local.mesh, rate=60.0)
        async with load.steady():
            await load.answers()
            for role in ("shard-2", "fallback"):
                assert await dismiss(local, [nodes[role]]) == [0], local.tail(nodes[role])
                nodes[role] = local.start(role, "digits")
                await local.ready(READY)
                await load.answers()
            # previous, present, previous: features pass from the one to the other, twice.
            before = handed_over(local, nodes["shard-1"]), handed_over(local, nodes["shard-2"])
            await load.answers(40)

            def both_hand_over() -> bool:
                now = handed_over(local, nodes["shard-1"]), handed_over(local, nodes["shard-2"])
                return now[0] > before[0] and now[1] > before[1]

            await eventually(both_hand_over, "they hand over to each other")

            def all_know_all() -> bool:
                known = [(local.status_of(node) or {})["gossip"] for node in nodes.values()]
                return all(each["peers"]["alive"] >= len(nodes) - 1 for each in known)

            await eventually(all_know_all, "they gossip")
            # Both follow desired state to another version of the model.
            second = split_digits(version="2")
            await push(local, second.manifest.to_json(), second.files)
            await eventually(lambda: load.results[-1].version == "2", "version 2 serves", READY)
            # A present fallback takes over from a previous shard, and from a present one.
            for role in ("shard-1", "shard-2"):
                nodes[role].signal(signal.SIGKILL)
                await load.answers()
                await all_ready(local)


async def test_a_device_goes_from_the_previous_wheel_to_the_present_code_under_requests(
    previous: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("d")
    result = split_digits(stages=1)
    async with mesh_of() as local:
        await push(local, result.manifest.to_json(), result.files)
        publisher = Publisher(local, home / "publisher")
        environments = adopted_from(home, previous)
        nodes = [node_arguments(local, "shard-1")]
        async with node_processes(environments, nodes) as units:
            one = updater(publisher, home, units)
            async with running(one) as task:
                load = Load(local.mesh, rate=40.0, budget=READY)
                async with load.steady(at_a_time=2):
                    await load.answers(5)
                    assert one.record.good == FIRST
                    await publisher.push("1.1")
                    wave = Wave("w1", "1.1", step=100.0, every=0.1, enrol=0.3)
                    await publisher.releases().begin(wave)

                    def is_there() -> bool:
                        record = one.record
                        return task.done() or (record.good, record.phase) == ("1.1", Phase.IDLE)

                    await eventually(is_there, "it goes there", READY)
                    await load.answers(5)
        assert one.record.good == "1.1"
