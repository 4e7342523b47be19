"""A mesh made command by command, in any order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from meshes import READY, Command, Commands, Load, close, commands, digits, free_port, until

import swarm
from shards.zoo import digits_model
from swarm.services.embedded import EmbeddedServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

MESH = "by-hand"


@dataclass
class Hand:
    """A person's tools: a folder, a server that may not run yet, commands."""

    folder: Path
    run: Commands
    server: EmbeddedServer
    nodes: dict[str, Command]

    @property
    def where(self) -> tuple[str, ...]:
        return ("--nats", self.server.url, "--mesh", MESH)

    async def swarm(self, *arguments: str, code: int = 0) -> Command:
        command = await asyncio.to_thread(self.run.swarm, *arguments)
        assert command.process.returncode == code, command.stderr
        return command

    async def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads((await self.swarm(*arguments, "--json", code=code)).stdout)

    def start_node(self, role: str, *extra: str, model: str = "digits") -> Command:
        node = self.run.start(
            *("nodes.cli.node", "--role", role, "--model", model, "--json", *self.where, *extra)
        )
        self.nodes[role] = node
        return node

    async def state(self, node: Command, state: str, timeout: float = READY) -> None:
        """Wait until a node prints that it is in this state."""

        def reached() -> bool:
            assert node.process.poll() is None, node.stderr
            return any(json.loads(s)["event"] == state for s in node.stdout.splitlines())

        await until(reached, timeout, f"{state}; it says:\n{node.stderr}")

    def image(self, count: int = 1) -> str:
        path = self.folder / f"x{count}.npz"
        np.savez(path, image=digits()[0][:count])
        return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("by-hand")
    (folder / "digits.onnx").write_bytes(digits_model())
    return folder


@pytest.fixture(scope="module")
def module_run(folder: Path) -> Iterator[Commands]:
    with commands(folder / "commands") as run:
        yield run


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hand(folder: Path, module_run: Commands) -> AsyncIterator[Hand]:
    """The tests of this module use it in their order: each is one step further."""
    server = EmbeddedServer(port=free_port())
    yield Hand(folder, module_run, server, {})
    for command in module_run.started:
        command.end()
    await server.stop()


async def test_a_model_is_split_into_a_folder_and_shown(hand: Hand) -> None:
    file, target = str(hand.folder / "digits.onnx"), str(hand.folder / "v1")
    made = await hand.json("model", "split", file, "-o", target, "--stages", "3")
    shown = await hand.json("model", "inspect", target)
    assert made == shown
    assert (made["model"], made["version"], made["batchable"]) == ("digits", "1", True)
    assert [shard["stage"] for shard in made["shards"]] == [1, 2, 3]
    for earlier, later in pairwise(made["shards"]):
        assert earlier["layers"][1] == later["layers"][0]
    for_people = await hand.swarm("model", "inspect", target)
    assert "digits@1" in for_people.stdout
    again = await hand.json("model", "split", file, "-o", target, code=1)
    assert "not empty" in again["error"]


async def test_a_damaged_artifact_is_refused_before_it_is_pushed(hand: Hand) -> None:
    damaged = hand.folder / "damaged"
    damaged.mkdir()
    for file in (hand.folder / "v1").iterdir():
        data = bytearray(file.read_bytes())
        if file.name == "stage-2.onnx":
            data[len(data) // 2] ^= 1
        (damaged / file.name).write_bytes(data)
    doc = await hand.json("model", "inspect", str(damaged), code=1)
    assert "stage-2.onnx" in doc["error"]
    assert "SHA-256" in doc["error"]


async def test_nodes_wait_for_a_server_with_a_clear_message(hand: Hand) -> None:
    """The last stage first, and no server, no model yet."""
    for role in ("shard-3", "fallback"):
        hand.start_node(role)
    for node in list(hand.nodes.values()):
        await until(
            lambda node=node: "no NATS server answers" in node.stderr, READY, "what it lacks"
        )
        assert hand.server.url in node.stderr
        assert "nats-server -js" in node.stderr
        assert node.process.poll() is None


async def test_nodes_wait_for_a_model_with_a_clear_message(hand: Hand) -> None:
    await hand.server.start()
    hand.start_node("shard-1")
    for node in hand.nodes.values():
        await until(lambda node=node: "swarm model push" in node.stderr, READY, "what it lacks")
        assert "model 'digits' is not in mesh 'by-hand' yet" in node.stderr
        assert node.process.poll() is None
    statuses = (await hand.json("status", *hand.where))["nodes"]
    assert {s["role"]: s["state"] for s in statuses} == dict.fromkeys(hand.nodes, "waiting")


async def test_a_push_sets_the_waiting_nodes_to_work(hand: Hand) -> None:
    doc = await hand.json("model", "push", str(hand.folder / "v1"), *hand.where)
    assert doc == {"model": "digits", "version": "1", "serving": "1"}
    hand.start_node("shard-2")
    for node in hand.nodes.values():
        await hand.state(node, "ready")
    async with swarm.connect(hand.server.url, MESH) as mesh:
        images, logits = digits()
        result = await mesh.infer("digits", {"image": images[:1]})
        assert close(result.outputs["logits"], logits[:1])
        assert [hop.stage for hop in result.hops] == [1, 2, 3]
    again = await hand.json("model", "push", str(hand.folder / "v1"), *hand.where)
    assert again["serving"] == "1", "pushing the same again changes nothing"


async def test_infer_prints_its_answer_as_json(hand: Hand) -> None:
    _, logits = digits()
    doc = await hand.json("infer", "digits", "--input", hand.image(), *hand.where)
    assert doc["status"] == "OK"
    assert (doc["model"], doc["version"], doc["degraded"]) == ("digits", "1", False)
    assert (doc["requests"], doc["answered"]) == (1, 1)
    assert [hop["stage"] for hop in doc["hops"]] == [1, 2, 3]
    (output,) = doc["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("logits", "FP32", [1, 10])
    assert close(np.asarray(output["data"], np.float32)[None], logits[:1])


async def test_infer_writes_outputs_and_repeats(hand: Hand) -> None:
    _, logits = digits()
    out = hand.folder / "out.npz"
    doc = await hand.json(
        *("infer", "digits@1", "--input", hand.image(3), "-o", str(out)),
        *("--repeat", "30", "--concurrency", "4", "--budget", "3s", *hand.where),
    )
    assert (doc["requests"], doc["answered"]) == (30, 30)
    assert 0 < doc["p50_ms"] <= doc["p99_ms"]
    assert "outputs" not in doc
    with np.load(out) as arrays:
        assert close(arrays["logits"], logits[:3])
    for_people = await hand.swarm("infer", "digits", "--input", hand.image(), *hand.where)
    assert "1 of 1 answered" in for_people.stdout


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("digits@9",), "NOT_FOUND"),
        (("nonsense",), "NOT_FOUND"),
        (("digits", "--budget", "0"), "DEADLINE_EXCEEDED"),
        (("digits", "--budget", "soon"), "INVALID_ARGUMENT"),
    ],
)
async def test_infer_says_what_is_wrong_and_exits_with_1(
    hand: Hand, arguments: tuple[str, ...], status: str
) -> None:
    doc = await hand.json("infer", *arguments, "--input", hand.image(), *hand.where, code=1)
    assert doc["status"] == status
    assert doc["error"]


async def test_infer_names_the_input_that_is_missing(hand: Hand) -> None:
    other = hand.folder / "other.npz"
    np.savez(other, picture=digits()[0][:1])
    wrong = await hand.json("infer", "digits", "--input", str(other), *hand.where, code=1)
    assert wrong["status"] == "INVALID_ARGUMENT"
    assert "image" in wrong["error"]


async def test_status_shows_every_node_that_speaks(hand: Hand) -> None:
    doc = await hand.json("status", *hand.where)
    assert doc["mesh"] == MESH
    assert {node["role"]: node["state"] for node in doc["nodes"]} == dict.fromkeys(
        hand.nodes, "ready"
    )
    for_people = await hand.swarm("status", *hand.where)
    assert "shard-2" in for_people.stdout
    nobody = await hand.json("status", "--nats", hand.server.url, "--mesh", "empty", code=1)
    assert nobody == {"mesh": "empty", "nodes": []}


async def test_versions_change_under_load_without_an_error(hand: Hand) -> None:
    """A second version is pushed, promoted and taken back while requests go on."""
    file, target = str(hand.folder / "digits.onnx"), str(hand.folder / "v2")
    await hand.json("model", "split", file, "-o", target, "--stages", "3", "--version", "2")
    async with swarm.connect(hand.server.url, MESH) as mesh:
        load = Load(mesh, rate=40)
        stream = asyncio.create_task(load.run(100_000))

        def versions(last: int = 20) -> set[str]:
            return {r.version for r in load.results[-last:]}

        try:
            pushed = await hand.json("model", "push", target, *hand.where)
            assert pushed["serving"] == "1", "a push alone changes nothing"
            listed = await hand.json("model", "list", *hand.where)
            assert listed["models"] == [
                {"model": "digits", "version": "1", "share": 100},
                {"model": "digits", "version": "2", "share": 0},
            ]
            assert versions() == {"1"}
            promoted = await hand.json("model", "promote", "digits@2", *hand.where)
            assert promoted == {"model": "digits", "version": "2", "previous": "1"}
            await until(lambda: versions() == {"2"}, READY, "version 2 serves")
            back = await hand.json("model", "rollback", "digits", *hand.where)
            assert back == {"model": "digits", "version": "1"}
            await until(lambda: versions() == {"1"}, READY, "version 1 serves again")
        finally:
            stream.cancel()
            await asyncio.gather(stream, return_exceptions=True)
        assert len(load.results) > 80
        load.check(len(load.results))
    for node in hand.nodes.values():
        assert node.process.poll() is None


async def versions_served(hand: Hand) -> set[str]:
    document = await hand.json("status", *hand.where)
    return {stage["version"] for node in document["nodes"] for stage in node["stages"]}


async def test_a_pinned_version_stays_beside_the_one_that_serves(hand: Hand) -> None:
    """Nodes of digits@2 serve it to clients that ask for version 2, promoted or not."""
    async with asyncio.timeout(READY):  # the others let it go some seconds after the rollback
        while "2" in await versions_served(hand):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    pinned = hand.start_node("fallback", "--node", "pinned", model="digits@2")
    await hand.state(pinned, "ready")
    images, logits = digits()
    async with swarm.connect(hand.server.url, MESH) as mesh:
        for version, nodes in (("2", {"pinned"}), ("1", None)):
            result = await mesh.infer(f"digits@{version}", {"image": images[:1]}, 5.0)
            assert result.version == version
            assert close(result.outputs["logits"], logits[:1])
            if nodes is not None:
                assert {hop.node for hop in result.hops} == nodes
        assert (await mesh.infer("digits", {"image": images[:1]})).version == "1"


async def test_what_does_not_exist_cannot_be_promoted(hand: Hand) -> None:
    for arguments, status in (
        (("promote", "digits@77"), "NOT_FOUND"),
        (("promote", "digits"), "INVALID_ARGUMENT"),
        (("promote", "nonsense@1"), "NOT_FOUND"),
        (("rollback", "nonsense"), "NOT_FOUND"),
    ):
        doc = await hand.json("model", *arguments, *hand.where, code=1)
        assert doc["status"] == status
    for arguments in (("--role", "shard-9"), ("--role", "shard-0"), ("--role", "boss")):
        node = hand.run.start("nodes.cli.node", *arguments, "--model", "digits", *hand.where)
        code = await asyncio.to_thread(node.wait, READY)
        assert code in (1, 2)
        assert arguments[1] in node.stderr
        assert "Traceback" not in node.stderr


async def test_all_nodes_leave_cleanly_at_the_end(hand: Hand) -> None:
    """SIGTERM to all at once: each drains and ends with 0."""
    for node in hand.nodes.values():
        node.process.terminate()
    for role, node in hand.nodes.items():
        assert await asyncio.to_thread(node.wait, 15.0) == 0, role
        assert json.loads(node.stdout.splitlines()[-1])["event"] == "left"
