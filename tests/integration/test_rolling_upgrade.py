"""Two versions of the code on one host and in one mesh understand each other.

Nodes and clients of the last version that had other rooms, and another form of the messages between
processes of one host, run beside those of the present code.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.commands import ROOT, environment
from support.meshes import READY, all_ready, digits, dismiss, mesh_of
from support.waiting import eventually

from nodes.event_loop import SUPERVISOR
from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess
from shards.zoo import digits_model
from swarm.fleet.advertised import StagePeer
from swarm.fleet.placement import NOWHERE, nearby
from swarm.fleet.priorities import PRIMARY
from swarm.samehost.memory import host_id, unavailable

pytestmark = [pytest.mark.integration, pytest.mark.processes]

BEFORE = "5953008"  # the commit whose code runs beside the present one
SHARDS = ("shard-1", "shard-2", "shard-3")
UNSIGNED = "--allow-unsigned"  # the version before signs nothing
LARGE = 200  # images of a request whose tensors lie in shared memory
CLIENT = Path(__file__).with_name("upgrade_client.py")


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the version before."""
    if shutil.which("git") is None:
        pytest.skip("there is no git to take the version before from")
    archive = subprocess.run(["git", "archive", BEFORE], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the version before is not here: {archive.stderr.decode().strip()}")
    tree = tmp_path_factory.mktemp("before")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(tree, filter="data")
    return tree


def of_tree(tree: Path) -> dict[str, str]:
    """The environment of a process that runs the code of a tree."""
    return environment({"PYTHONPATH": str(tree), "PYTHONUNBUFFERED": "1"})


@dataclass
class NodeBefore(NodeProcess):
    """A node process of the version before."""

    tree: Path = field(default_factory=Path)

    def start(self) -> None:
        assert self.log_path is not None
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nodes.node_cli", *self.arguments],
                cwd=self.tree,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                env=of_tree(self.tree) | {SUPERVISOR: str(os.getpid())},
            )


def start_before(local: LocalMesh, tree: Path, role: str) -> NodeProcess:
    arguments = ["--role", role, "--nats", local.url, "--mesh", local.name, "--model", "digits"]
    node = NodeBefore(role, arguments, local.logs / f"{role}-before.log", tree=tree)
    return local.supervisor.add(node)


def run_before(tree: Path, *arguments: str) -> None:
    """Run `swarm …` of the version before to its end."""
    command = [sys.executable, "-m", "nodes.cli", *arguments]
    done = subprocess.run(
        command, cwd=tree, env=of_tree(tree), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def split_before(before: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model, split by the version before."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "digits.onnx").write_bytes(digits_model())
    file, shards = str(folder / "digits.onnx"), str(folder / "shards")
    run_before(before, "model", "split", file, "--output", shards, "--name", "digits")
    return folder / "shards"


class Client:
    """A client's process that keeps asking, and what it was answered."""

    def __init__(self, tree: Path, url: str, feeds: Path, deliveries: Sequence[str]) -> None:
        self.out = feeds.with_name(f"{tree.name}.out")
        self.err = self.out.with_suffix(".err")
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, str(CLIENT), url, str(feeds), *deliveries],
                cwd=tree,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env=of_tree(tree),
            )

    @property
    def answers(self) -> list[dict[str, Any]]:
        whole = self.out.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    async def answered(self, more: int) -> None:
        """Until it has been answered so often once more."""
        wanted = len(self.answers) + more

        def enough() -> bool:
            assert self.process.poll() is None, self.err.read_text()
            return len(self.answers) >= wanted

        await eventually(enough, f"{more} answers to {self.out.stem}", READY)

    async def end(self) -> list[dict[str, Any]]:
        """Let it end: all its answers."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        await eventually(lambda: self.process.poll() is not None, "the client ends", READY)
        assert self.process.returncode == 0, self.err.read_text()
        return self.answers


@contextmanager
def clients(
    url: str, folder: Path, trees: Sequence[Path], deliveries: Sequence[str]
) -> Iterator[list[Client]]:
    """A client for each tree of code."""
    images, logits = digits()
    feeds = folder / "feeds.npz"
    np.savez(
        feeds,
        **{"image.small": images[:1], "logits.small": logits[:1]},
        **{"image.large": images[:LARGE], "logits.large": logits[:LARGE]},
    )
    made: list[Client] = []
    try:
        for tree in trees:
            made.append(Client(tree, url, feeds, deliveries))
        yield made
    finally:
        for client in made:
            client.process.kill()
            client.process.wait()


def check(answers: list[dict[str, Any]]) -> None:
    """All requests were answered, and rightly."""
    failed = [f"{a['status']}: {a['message']}" for a in answers if a["status"] != "OK"]
    assert failed == []
    assert all(answer["right"] for answer in answers)


@pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
def test_processes_of_versions_with_other_layouts_share_neither_memory_nor_sockets(
    before: Path,
) -> None:
    """Peers share a host where their host ids are equal: the layout's version is part of the id."""
    theirs = subprocess.run(
        [sys.executable, "-c", "from swarm.shm import host_id; print(host_id())"],
        cwd=before,
        env=of_tree(before),
        capture_output=True,
        text=True,
        check=True,
    )
    here = [StagePeer("old", PRIMARY, theirs.stdout.strip(), False, "_INBOX.old")]
    assert nearby(here, host_id()) == NOWHERE


@pytest.mark.benchmark  # a whole story, longer than ten seconds
async def test_nodes_are_replaced_one_by_one_and_every_request_of_both_versions_is_answered(
    before: Path, split_before: Path, tmp_path: Path
) -> None:
    """In the midst of it, with stages of both versions in turn, one of either is killed."""
    async with mesh_of(name="default") as local:
        push = ("model", "push", str(split_before), "--nats", local.url)
        await asyncio.to_thread(run_before, before, *push)
        with clients(local.url, tmp_path, [ROOT, before], ["durable", "core"]) as asking:

            async def answered(more: int = 20) -> None:
                for client in asking:
                    await client.answered(more)

            old = {role: start_before(local, before, role) for role in (*SHARDS, "fallback")}
            new: dict[str, NodeProcess] = {}
            await local.ready(READY)
            await answered()
            for role in ("shard-2", "fallback", "shard-1", "shard-3"):
                assert await dismiss(local, [old[role]]) == [0], local.tail(old[role])
                new[role] = local.start(role, "digits", UNSIGNED)
                await local.ready(READY)
                await answered()
                if role == "fallback":
                    for victim in (old["shard-1"], new["shard-2"]):
                        victim.signal(signal.SIGKILL)
                        await answered()
                        await all_ready(local)
                        await answered()
            names = {(local.status_of(node) or {})["node"] for node in new.values()}
            for client in asking:
                answers = await client.end()
                check(answers)
                assert not names & set(answers[0]["nodes"])
                assert set(answers[-1]["nodes"]) <= names
