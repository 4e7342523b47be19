"""A command that ends, at any moment and for any reason, leaves no process behind."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from meshes import READY, Command, Commands, close, commands, digits, until_now

import swarm
from shards.zoo import digits_model

pytestmark = [pytest.mark.integration, pytest.mark.processes]

GONE = 15.0  # seconds in which everything must have ended


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "digits.onnx"
    path.write_bytes(digits_model())
    return str(path)


def up(run: Commands, model_file: str, *extra: str) -> Command:
    return run.start(
        "nodes.cli.main", "up", "--model", model_file, "--stages", "2", "--json", *extra
    )


def ask(ready: dict[str, Any], count: int = 3, budget: float = 5.0) -> None:
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
    for process in command.look().values():
        try:
            line = process.cmdline()
        except psutil.NoSuchProcess:
            continue
        if line and line[0].endswith("nats-server"):
            found.append("nats-server")
        elif "nodes.cli.node" in line:
            found.append(line[line.index("--role") + 1])
    return sorted(found)


def gone(command: Command, timeout: float) -> None:
    """No process that the command started runs any more."""
    deadline = time.monotonic() + timeout
    while command.remaining() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert command.remaining() == []


@pytest.fixture(scope="module")
def two_at_once(
    tmp_path_factory: pytest.TempPathFactory, model_file: str
) -> Iterator[tuple[Command, Command]]:
    """Two `swarm up` of one model, started at the same moment."""
    with commands(tmp_path_factory.mktemp("two")) as run:
        both = up(run, model_file), up(run, model_file, "--no-fallback", "--name", "second")
        for command in both:
            command.ready_line()
        yield both


def test_the_ready_line_says_where_and_what_runs(two_at_once: tuple[Command, Command]) -> None:
    ready = two_at_once[0].ready_line()
    fields = {"event", "nats", "mesh", "model", "version", "stages", "nodes", "servers", "secure"}
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
        assert node["pid"] in two_at_once[0].look()
    assert two_at_once[0].stdout.count("\n") == 1, "standard output holds the one document"


def test_two_at_once_on_one_machine_do_not_meet(two_at_once: tuple[Command, Command]) -> None:
    first, second = (command.ready_line() for command in two_at_once)
    assert first["nats"] != second["nats"]
    assert [node["role"] for node in second["nodes"]] == ["shard-1", "shard-2"]
    ask(first)
    ask(second)
    pids = [{node["pid"] for node in ready["nodes"]} for ready in (first, second)]
    assert not pids[0] & pids[1]


def test_a_killed_node_is_started_again_and_serves(two_at_once: tuple[Command, Command]) -> None:
    """In the mesh without a fallback node, so that an answer proves the return."""
    command = two_at_once[1]
    ready = command.ready_line()
    victim = next(node for node in ready["nodes"] if node["role"] == "shard-2")
    command.family[victim["pid"]].kill()
    until_now(
        lambda: kinds(command).count("shard-2") == 1 and victim["pid"] not in _alive(command),
        READY,
        "shard-2 starts again",
    )
    ask(ready, budget=30.0)
    assert "shard-2 ended with code -9" in command.stderr


def _alive(command: Command) -> set[int]:
    return {pid for pid, process in command.look().items() if process.is_running()}


def test_sigint_while_serving_drains_and_leaves_nothing(
    two_at_once: tuple[Command, Command],
) -> None:
    command = two_at_once[0]
    assert kinds(command) == ["fallback", "nats-server", "shard-1", "shard-2"]
    command.signal(signal.SIGINT)
    assert command.wait(GONE) == 0
    gone(command, 1.0)
    assert "Traceback" not in command.stderr


def test_sigkill_of_the_command_itself_leaves_no_node_and_no_server(
    two_at_once: tuple[Command, Command],
) -> None:
    command = two_at_once[1]
    assert set(kinds(command)) == {"nats-server", "shard-1", "shard-2"}
    command.signal(signal.SIGKILL)
    command.process.wait(5)
    gone(command, GONE)


def test_sigkill_of_the_command_ends_even_a_node_that_hangs(run: Commands, model_file: str) -> None:
    """A stopped process takes no signal but SIGKILL."""
    command = up(run, model_file, "--no-fallback")
    hung = command.ready_line()["nodes"][0]["pid"]
    command.family[hung].suspend()
    command.signal(signal.SIGKILL)
    command.process.wait(5)
    gone(command, GONE)


def test_sigint_ends_even_a_node_that_hangs(run: Commands, model_file: str) -> None:
    command = up(run, model_file, "--no-fallback")
    hung = command.ready_line()["nodes"][0]["pid"]
    command.family[hung].suspend()
    command.signal(signal.SIGINT)
    assert command.wait(GONE) == 0
    assert not command.remaining()


@pytest.mark.parametrize("moment", ["at-once", "splitting", "server", "loading", "last-node"])
def test_sigint_while_starting_leaves_nothing(run: Commands, model_file: str, moment: str) -> None:
    command = up(run, model_file)
    seen = {"server": 1, "loading": 2, "last-node": 4}
    if moment == "at-once":
        time.sleep(0.15)
    elif moment == "splitting":
        time.sleep(0.6)
    else:
        until_now(lambda: len(kinds(command)) >= seen[moment], READY, "processes are started")
    command.signal(signal.SIGINT)
    code = command.wait(GONE)
    assert code in (130, 1, -signal.SIGINT) if moment in ("at-once", "splitting") else code == 130
    assert not command.remaining()
    assert command.stdout == "", "it never was ready"


def test_an_impatient_second_sigint_leaves_nothing_either(run: Commands, model_file: str) -> None:
    command = up(run, model_file)
    command.ready_line()
    command.signal(signal.SIGINT)
    time.sleep(0.01)
    command.signal(signal.SIGINT)
    command.wait(GONE)
    gone(command, GONE)
    assert not list(run.temporary.iterdir()), "no files either"


def test_sigterm_ends_it_as_sigint_does(run: Commands, model_file: str) -> None:
    command = up(run, model_file, "--no-fallback")
    command.ready_line()
    command.signal(signal.SIGTERM)
    assert command.wait(GONE) == 0
    assert not command.remaining()
    assert not list(run.temporary.iterdir()), "no files either"


def test_a_file_that_is_no_model_is_one_clear_line(run: Commands, tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"not a model" * 10)
    for path in (str(bad), str(tmp_path / "absent.onnx")):
        command = up(run, path)
        assert command.wait(GONE) == 1
        doc = json.loads(command.stdout)
        assert doc["status"] == "INVALID_ARGUMENT"
        assert doc["error"]
        assert "Traceback" not in command.stderr
        assert not command.remaining()


def test_a_server_that_is_not_there_is_said_with_what_to_do(run: Commands, model_file: str) -> None:
    command = up(run, model_file, "--nats", "nats://127.0.0.1:1")
    assert command.wait(2 * GONE) == 1
    assert json.loads(command.stdout)["status"] == "UNAVAILABLE"
    assert "nats-server -js" in command.stderr


# --- demo -------------------------------------------------------------------------------


def test_the_demo_loses_nothing_and_says_so_in_one_document(run: Commands) -> None:
    command = run.start("nodes.cli.main", "demo", "--seconds", "10", "--json")
    assert command.wait(60.0) == 0, command.stderr
    doc = json.loads(command.stdout)
    assert (doc["lost"], doc["wrong"]) == (0, 0)
    assert not command.remaining()
    assert "gets SIGKILL" in command.stderr
    assert "starts again" in command.stderr


def test_sigint_while_the_demos_shard_is_dead_leaves_nothing(run: Commands) -> None:
    command = run.start("nodes.cli.main", "demo", "--seconds", "8", "--json")

    def killed() -> bool:
        assert command.process.poll() is None, command.stderr
        return "gets SIGKILL" in command.stderr

    until_now(killed, 60.0, "the kill phase")
    time.sleep(random.uniform(0.0, 0.5))
    command.signal(signal.SIGINT)
    assert command.wait(GONE) == 130
    assert not command.remaining()
    assert "Traceback" not in command.stderr


def test_sigint_while_the_demos_learners_learn_leaves_nothing(run: Commands) -> None:
    command = run.start("nodes.cli.main", "demo", "--learn", "--json")

    def taught() -> bool:
        assert command.process.poll() is None, command.stderr
        return "was taught its" in command.stderr

    until_now(taught, 120.0, "the learners are taught")
    time.sleep(random.uniform(0.0, 2.0))
    command.signal(signal.SIGINT)
    assert command.wait(2 * GONE) == 130
    assert not command.remaining()
    assert "Traceback" not in command.stderr


def test_digits_are_what_the_model_was_made_for() -> None:
    """The reference that all comparisons here rest on is itself right about the labels."""
    from shards.zoo import digits_heldout

    _, labels = digits_heldout()
    _, logits = digits()
    assert float(np.mean(logits.argmax(axis=1) == labels)) > 0.97
