"""A mesh made command by command, in any order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from support.commands import Command, Commands, Said, commands, node_said, said
from support.meshes import READY, Load, close, digits
from support.ports import free_port
from support.waiting import eventually

import swarm
from nodes.up.embedded_server import EmbeddedServer
from shards.zoo import digits_model

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]

MESH = "by-hand"


async def run_swarm(*arguments: str, code: int = 0) -> Said:
    done = await asyncio.to_thread(said, *arguments)
    assert done.code == code, done
    return done


async def run_json(*arguments: str, code: int = 0) -> Any:
    return json.loads((await run_swarm(*arguments, "--json", code=code)).stdout)


@dataclass
class Hand:
    """A person's tools: a folder, a server, nodes that are started by commands."""

    folder: Path
    run: Commands
    server: EmbeddedServer
    nodes: dict[str, Command]

    @property
    def where(self) -> tuple[str, ...]:
        return ("--nats", self.server.url, "--mesh", MESH)

    async def json(self, *arguments: str, code: int = 0) -> Any:
        """Of a command that goes to the mesh."""
        return await run_json(*arguments, *self.where, code=code)

    def start_node(self, role: str, *extra: str, model: str = "digits") -> Command:
        return self.run.start(
            *("nodes.cli.node", "--role", role, "--model", model, "--json", *self.where, *extra)
        )

    async def state(self, node: Command, state: str) -> None:
        """Wait until a node prints that it is in this state."""

        def reached() -> bool:
            assert node.process.poll() is None, node.stderr
            return any(json.loads(s)["event"] == state for s in node.stdout.splitlines())

        await eventually(reached, state, READY)

    async def lacks(self, text: str) -> None:
        """Wait until each node says what it waits for."""
        for node in self.nodes.values():
            await eventually(lambda node=node: text in node.stderr, text, READY)
            assert node.process.poll() is None

    def image(self, count: int = 1) -> str:
        path = self.folder / f"x{count}.npz"
        np.savez(path, image=digits()[0][:count])
        return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("by-hand")
    (folder / "digits.onnx").write_bytes(digits_model())
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hand(folder: Path) -> AsyncIterator[Hand]:
    """The last stage starts first, before there is a server or a model: nodes wait, and say for
    what. At the end SIGTERM goes to all at once, and each drains and ends with 0."""
    server = EmbeddedServer(port=free_port())
    with commands(folder / "commands") as run:
        made = Hand(folder, run, server, {})
        for role in ("shard-3", "fallback"):
            made.nodes[role] = made.start_node(role)
        await made.lacks("no NATS server answers")
        await made.lacks(server.url)
        await made.lacks("nats-server -js")
        async with server:
            made.nodes["shard-1"] = made.start_node("shard-1")
            await made.lacks("model 'digits' is not in mesh 'by-hand' yet")
            await made.lacks("swarm model push")
            statuses = (await made.json("status"))["nodes"]
            waiting = dict.fromkeys(made.nodes, "waiting")
            assert {s["role"]: s["state"] for s in statuses} == waiting
            file, target = str(folder / "digits.onnx"), str(folder / "v1")
            await run_json("model", "split", file, "-o", target, "--stages", "3")
            doc = await made.json("model", "push", target)
            assert doc == {"model": "digits", "version": "1", "serving": "1"}
            made.nodes["shard-2"] = made.start_node("shard-2")
            for node in made.nodes.values():
                await made.state(node, "ready")
            yield made
            for node in made.nodes.values():
                node.process.terminate()
            for role, node in made.nodes.items():
                assert await asyncio.to_thread(node.wait) == 0, role
                assert json.loads(node.stdout.splitlines()[-1])["event"] == "left"


def damage(path: Path) -> None:
    """Change one bit in the midst of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


async def test_a_model_is_split_into_a_folder_and_shown(folder: Path) -> None:
    file, target = str(folder / "digits.onnx"), str(folder / "shown")
    made = await run_json("model", "split", file, "-o", target, "--stages", "3")
    shown = await run_json("model", "inspect", target)
    assert made == shown
    assert (made["model"], made["version"], made["batchable"]) == ("digits", "1", True)
    assert [shard["stage"] for shard in made["shards"]] == [1, 2, 3]
    for earlier, later in pairwise(made["shards"]):
        assert earlier["layers"][1] == later["layers"][0]
    for_people = await run_swarm("model", "inspect", target)
    assert "digits@1" in for_people.stdout
    again = await run_json("model", "split", file, "-o", target, code=1)
    assert "not empty" in again["error"]
    # A damaged artifact is refused before it is pushed.
    damage(Path(target, "stage-2.onnx"))
    doc = await run_json("model", "inspect", target, code=1)
    assert "stage-2.onnx" in doc["error"]
    assert "SHA-256" in doc["error"]


async def test_pushing_the_same_again_changes_nothing(hand: Hand) -> None:
    again = await hand.json("model", "push", str(hand.folder / "v1"))
    assert again["serving"] == "1"


async def test_infer_prints_its_answer_as_json(hand: Hand) -> None:
    _, logits = digits()
    doc = await hand.json("infer", "digits", "--input", hand.image())
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
        *("--repeat", "30", "--concurrency", "4", "--budget", "30s"),
    )
    assert (doc["requests"], doc["answered"]) == (30, 30)
    assert 0 < doc["p50_ms"] <= doc["p99_ms"]
    assert "outputs" not in doc
    with np.load(out) as arrays:
        assert close(arrays["logits"], logits[:3])
    for_people = await run_swarm("infer", "digits", "--input", hand.image(), *hand.where)
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
    doc = await hand.json("infer", *arguments, "--input", hand.image(), code=1)
    assert doc["status"] == status
    assert doc["error"]


async def test_infer_names_the_input_that_is_missing(hand: Hand) -> None:
    other = hand.folder / "other.npz"
    np.savez(other, picture=digits()[0][:1])
    wrong = await hand.json("infer", "digits", "--input", str(other), code=1)
    assert wrong["status"] == "INVALID_ARGUMENT"
    assert "image" in wrong["error"]


async def test_status_shows_every_node_that_speaks(hand: Hand) -> None:
    doc = await hand.json("status")
    assert doc["mesh"] == MESH
    present = {n["role"]: n["state"] for n in doc["nodes"] if n["state"] != "left"}
    assert present == dict.fromkeys(hand.nodes, "ready")
    for_people = await run_swarm("status", *hand.where)
    assert "shard-2" in for_people.stdout
    nobody = await run_json("status", "--nats", hand.server.url, "--mesh", "empty", code=1)
    assert nobody == {"mesh": "empty", "nodes": []}


async def test_versions_change_under_load_without_an_error(hand: Hand) -> None:
    """A second version is pushed, promoted and taken back while requests go on."""
    file, target = str(hand.folder / "digits.onnx"), str(hand.folder / "v2")
    await run_json("model", "split", file, "-o", target, "--stages", "3", "--version", "2")
    async with swarm.connect(hand.server.url, MESH) as mesh:
        load = Load(mesh, rate=40, budget=30.0)

        def versions(last: int = 20) -> set[str]:
            return {r.version for r in load.results[-last:]}

        async with load.steady():
            await load.answers()
            pushed = await hand.json("model", "push", target)
            assert pushed["serving"] == "1", "a push alone changes nothing"
            listed = await hand.json("model", "list")
            assert listed["models"] == [
                {"model": "digits", "version": "1", "share": 100},
                {"model": "digits", "version": "2", "share": 0},
            ]
            assert versions() == {"1"}
            promoted = await hand.json("model", "promote", "digits@2")
            assert promoted == {"model": "digits", "version": "2", "previous": "1"}
            await eventually(lambda: versions() == {"2"}, "version 2 serves", READY)
            back = await hand.json("model", "rollback", "digits")
            assert back == {"model": "digits", "version": "1"}
            await eventually(lambda: versions() == {"1"}, "version 1 serves again", READY)
    for node in hand.nodes.values():
        assert node.process.poll() is None
    await a_pinned_version_stays_beside_the_one_that_serves(hand)


async def a_pinned_version_stays_beside_the_one_that_serves(hand: Hand) -> None:
    """Nodes of digits@2 serve it to clients that ask for version 2, promoted or not."""

    async def is_let_go() -> bool:
        nodes = (await hand.json("status"))["nodes"]
        return "2" not in {stage["version"] for node in nodes for stage in node["stages"]}

    # The others let it go some seconds after the rollback.
    await eventually(is_let_go, "version 2 is let go", READY)
    pinned = hand.start_node("fallback", "--node", "pinned", model="digits@2")
    await hand.state(pinned, "ready")
    images, logits = digits()
    async with swarm.connect(hand.server.url, MESH) as mesh:
        for version, nodes in (("2", {"pinned"}), ("1", None)):
            result = await mesh.infer(f"digits@{version}", {"image": images[:1]}, 30.0)
            assert result.version == version
            assert close(result.outputs["logits"], logits[:1])
            if nodes is not None:
                assert {hop.node for hop in result.hops} == nodes
        assert (await mesh.infer("digits", {"image": images[:1]}, 30.0)).version == "1"
    pinned.process.terminate()
    assert await asyncio.to_thread(pinned.wait) == 0


async def test_what_does_not_exist_cannot_be_promoted(hand: Hand) -> None:
    for arguments, status in (
        (("promote", "digits@77"), "NOT_FOUND"),
        (("promote", "digits"), "INVALID_ARGUMENT"),
        (("promote", "nonsense@1"), "NOT_FOUND"),
        (("rollback", "nonsense"), "NOT_FOUND"),
    ):
        doc = await hand.json("model", *arguments, code=1)
        assert doc["status"] == status


async def test_a_role_that_does_not_exist_ends_its_node_with_a_clear_word(hand: Hand) -> None:
    for role in ("shard-0", "boss"):
        wrong = await asyncio.to_thread(node_said, "--role", role, "--model", "digits", *hand.where)
        assert wrong.code == 2
        assert role in wrong.stderr
    node = hand.start_node("shard-9")
    assert await asyncio.to_thread(node.wait, READY) in (1, 2)
    assert "shard-9" in node.stderr
    assert "Traceback" not in node.stderr
