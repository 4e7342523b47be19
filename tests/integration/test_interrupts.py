"""A command that ends, at any moment and for any reason, leaves no process behind."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from support.commands import Command, Commands, said
from support.meshes import READY, close, digits
from support.waiting import eventually, eventually_now

import swarm
from nodes.up.mesh import LocalMesh
from shards.zoo import digits_heldout, digits_model

pytestmark = [pytest.mark.integration, pytest.mark.processes]


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "digits.onnx"
    path.write_bytes(digits_model())
    return str(path)


def up(run: Commands, model_file: str, *extra: str) -> Command:
    return run.start(
        "nodes.cli.main", "up", "--model", model_file, "--stages", "2", "--json", *extra
    )


def ask(ready: dict[str, Any], count: int = 3, budget: float = 30.0) -> None:
    """Digits through the mesh that a ready line describes; rightly answered."""

    async def main() -> None:
        images, logits = digits()
        async with swarm.connect(ready["nats"], ready["mesh"]) as mesh:
            for at in range(count):
                image = {"image": images[at : at + 1]}
                result = await mesh.infer(ready["model"], image, budget)
                assert close(result.outputs["logits"], logits[at : at + 1])

    asyncio.run(main())


def kinds(command: Command) -> list[str]:
    """Its descendants: `nats-server`, or a node's role."""
    found = []
    for process in command.family.values():
        try:
            line = process.cmdline()
        except psutil.NoSuchProcess:
            continue
        if line and line[0].endswith("nats-server"):
            found.append("nats-server")
        elif "nodes.cli.node" in line:
            found.append(line[line.index("--role") + 1])
    return sorted(found)


def said_when_ready(command: Command) -> None:
    ready = command.ready_line()
    fields = {"event", "nats", "mesh", "model", "version", "stages", "models"}
    fields |= {"nodes", "servers", "secure"}
    assert ready.keys() == fields
    assert ready["event"] == "ready"
    assert ready["secure"] is False, "without --secure"
    assert ready["nats"].startswith("nats://127.0.0.1:")
    assert (ready["mesh"], ready["model"], ready["version"]) == ("default", "digits", "1")
    assert ready["stages"] == 2
    assert [node["role"] for node in ready["nodes"]] == ["shard-1", "shard-2", "fallback"]
    for node in ready["nodes"]:
        assert node.keys() == {"node", "role", "pid"}
        assert node["node"].startswith(node["role"])
        assert node["pid"] in command.family
    assert command.stdout.count("\n") == 1, "standard output holds the one document"
    assert kinds(command) == ["fallback", "nats-server", "shard-1", "shard-2"]


def starts_its_dead_node_again(command: Command) -> None:
    """In a mesh without a fallback node, so that an answer proves the return."""
    ready = command.ready_line()
    victim = next(node for node in ready["nodes"] if node["role"] == "shard-2")
    command.family[victim["pid"]].kill()
    eventually_now(
        lambda: kinds(command).count("shard-2") == 1 and victim["pid"] not in command.family,
        "shard-2 starts again",
        READY,
        0.05,
    )
    ask(ready, budget=2 * READY)
    command.says("shard-2 ended with code -9")


@pytest.mark.benchmark
def test_two_at_once_do_not_meet_and_leave_nothing_however_they_end(
    run: Commands, model_file: str
) -> None:
    """By SIGINT though a node hangs, by SIGKILL though a node hangs."""
    first, second = up(run, model_file), up(run, model_file, "--no-fallback", "--name", "second")
    said_when_ready(first)
    ready = [command.ready_line() for command in (first, second)]
    assert ready[0]["nats"] != ready[1]["nats"]
    assert [node["role"] for node in ready[1]["nodes"]] == ["shard-1", "shard-2"]
    assert not first.family.keys() & second.family.keys()
    for each in ready:
        ask(each)
    starts_its_dead_node_again(second)
    for command, each in zip((first, second), ready, strict=True):
        command.family[each["nodes"][0]["pid"]].suspend()
    first.signal(signal.SIGINT)
    assert first.wait() == 0
    assert first.remaining() == []
    assert "Traceback" not in first.stderr
    second.signal(signal.SIGKILL)
    second.wait()
    second.leaves_nothing()


@pytest.mark.parametrize(
    "moment", ["at once", pytest.param("server", marks=pytest.mark.benchmark), "last node"]
)
def test_sigint_while_starting_leaves_nothing(run: Commands, model_file: str, moment: str) -> None:
    command = up(run, model_file)
    seen = {"at once": 0, "server": 1, "last node": 4}[moment]
    eventually_now(lambda: len(kinds(command)) >= seen, "processes are started", READY, 0.05)
    command.signal(signal.SIGINT)
    # Before Python runs, the signal itself ends it.
    assert command.wait() in ((130, 1, -signal.SIGINT) if moment == "at once" else (130,))
    assert command.remaining() == []
    assert command.stdout == "", "it never was ready"


def test_an_impatient_second_sigint_leaves_nothing_either(run: Commands, model_file: str) -> None:
    command = up(run, model_file, "--no-fallback")
    command.ready_line()
    command.signal(signal.SIGINT)
    command.signal(signal.SIGINT)
    command.wait()
    command.leaves_nothing()
    assert not list(run.temporary.iterdir()), "no files either"


PROGRAMS = {
    "shard": ("node", "--role", "shard-1", "--model", "digits", "--allow-unsigned", "--json"),
    "edge": (
        "node",
        "--role",
        "edge",
        "--model",
        "digits",
        "--rate",
        "50",
        "--allow-unsigned",
        "--json",
    ),
    "gateway": (
        "node",
        "--role",
        "gateway",
        "--model",
        "digits",
        "--http",
        "0",
        "--allow-unsigned",
        "--json",
    ),
    "exporter": ("main", "metrics-exporter", "--port", "0", "--json"),
    "dashboard": ("main", "dashboard", "--port", "0", "--json"),
    "up": ("main", "up", "--model", "toy", "--name", "told-twice", "--stages", "2", "--json"),
}


@pytest.mark.benchmark
@pytest.mark.asyncio(loop_scope="session")
async def test_each_program_that_is_told_twice_within_five_milliseconds_drains_once(
    run: Commands, digits_mesh: LocalMesh
) -> None:
    started = {
        name: run.start(f"nodes.cli.{module}", *words, "--nats", digits_mesh.url)
        for name, (module, *words) in PROGRAMS.items()
    }
    for name, command in started.items():
        word = '"ready"' if name in ("shard", "edge", "gateway") else "{"

        def is_up(command: Command = command, word: str = word) -> bool:
            assert command.process.poll() is None, command.stderr
            return word in command.stdout

        await eventually(is_up, f"{name} is up", READY)
    for command in started.values():
        command.signal(signal.SIGTERM)
        await asyncio.sleep(0.004)  # the time between the two is what is tested
        command.signal(signal.SIGTERM)
    for name, command in started.items():
        code = await asyncio.to_thread(command.wait)
        assert code == 0, f"{name}: {command.stdout}{command.stderr}"
        assert command.remaining() == [], name
        if PROGRAMS[name][0] == "node":
            events = [json.loads(line).get("event") for line in command.stdout.splitlines()]
            assert events.count("left") == 1, f"{name}: {events}"


def test_a_file_that_is_no_model_is_one_clear_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"not a model" * 10)
    for path in (str(bad), str(tmp_path / "absent.onnx")):
        told = said("up", "--model", path, "--stages", "2", "--json")
        assert told.code == 1
        doc = json.loads(told.stdout)
        assert doc["status"] == "INVALID_ARGUMENT"
        assert doc["error"]


def test_a_server_that_is_not_there_is_said_with_what_to_do(model_file: str) -> None:
    told = said("up", "--model", model_file, "--nats", "nats://127.0.0.1:1", "--json")
    assert told.code == 1
    assert json.loads(told.stdout)["status"] == "UNAVAILABLE"
    assert "nats-server -js" in told.stderr


# --- demo -------------------------------------------------------------------------------


@pytest.mark.benchmark
def test_the_demo_loses_nothing_and_says_so_in_one_document(run: Commands) -> None:
    command = run.start("nodes.cli.main", "demo", "--seconds", "6", "--json")
    assert command.wait(120.0) == 0, command.stderr
    doc = json.loads(command.stdout)
    assert (doc["lost"], doc["wrong"]) == (0, 0)
    assert command.remaining() == []
    assert "gets SIGKILL" in command.stderr
    assert "starts again" in command.stderr


@pytest.mark.benchmark
@pytest.mark.parametrize(
    ("story", "moment"), [("--seconds=6", "gets SIGKILL"), ("--learn", "was taught its")]
)
def test_sigint_in_the_midst_of_a_demo_leaves_nothing(
    run: Commands, story: str, moment: str
) -> None:
    """While its shard is dead; while its learners learn."""
    command = run.start("nodes.cli.main", "demo", story, "--json")
    command.says(moment, 120.0)
    command.signal(signal.SIGINT)
    assert command.wait(60.0) == 130
    assert command.remaining() == []
    assert "Traceback" not in command.stderr


def test_digits_are_what_the_model_was_made_for() -> None:
    """The reference that all comparisons here rest on is itself right about the labels."""
    _, labels = digits_heldout()
    _, logits = digits()
    assert float(np.mean(logits.argmax(axis=1) == labels)) > 0.97
