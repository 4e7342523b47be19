"""Nodes and commands with keys, as a user has them: whose models are run, and whose are refused."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.commands import Command, Commands, commands, node_said, said
from support.meshes import READY, digits, split_digits
from support.ports import free_port
from support.waiting import eventually

import swarm
from nodes.up.embedded_server import EmbeddedServer
from shards.manifest import write_dir
from shards.zoo import digits_model
from swarm.link import jetstream

VERSION_2 = ("--name", "digits", "--version", "2")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]


class Device:
    """A machine of one user: a folder of settings of its own."""

    def __init__(self, run: Commands, folder: Path, url: str) -> None:
        self._run = run
        self._env = {"XDG_CONFIG_HOME": str(folder)}
        self.folder = folder
        self.where = ("--nats", url, "--mesh", "signed")

    async def swarm(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        with pytest.MonkeyPatch.context() as environment:
            for name, value in self._env.items():
                environment.setenv(name, value)
            told = await asyncio.to_thread(said, *arguments, "--json")
        assert told.code == code, told.stderr
        return dict(json.loads(told.stdout))

    def node(self, *extra: str) -> Command:
        return self._run.start(
            *("nodes.cli.node", "--role", "fallback", "--model", "digits", "--json"),
            *(*self.where, *extra),
            env=self._env,
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    with commands(tmp_path_factory.mktemp("commands")) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def url() -> AsyncIterator[str]:
    async with EmbeddedServer(port=free_port()) as server:
        yield server.url


@pytest.fixture(scope="module")
def office(run: Commands, url: str, tmp_path_factory: pytest.TempPathFactory) -> Device:
    return Device(run, tmp_path_factory.mktemp("office"), url)


@pytest.fixture(scope="module")
def field(run: Commands, url: str, tmp_path_factory: pytest.TempPathFactory) -> Device:
    return Device(run, tmp_path_factory.mktemp("field"), url)


def folder_of(version: str, folder: Path) -> str:
    target = folder / f"digits-{version}"
    if not target.exists():
        result = split_digits(version=version, stages=2)
        write_dir(target, result.manifest, result.files)
    return str(target)


async def state(node: Command, wanted: str) -> None:
    def reached() -> bool:
        assert node.process.poll() is None, node.stderr
        return any(json.loads(line)["event"] == wanted for line in node.stdout.splitlines())

    await eventually(reached, f"{wanted}; it says:\n{node.stderr}", READY)


async def test_a_device_refuses_a_model_until_its_signer_is_trusted(
    office: Device, field: Device
) -> None:
    """The node waits meanwhile, names the key, and goes on by itself."""
    await office.swarm("model", "push", folder_of("1", office.folder), *office.where)
    key = (await office.swarm("keys", "show"))["public"]
    node = field.node()
    command = f"swarm keys trust {key}"
    await eventually(lambda: command in node.stderr, "it says how to trust the key", READY)
    await state(node, "waiting")
    assert "ready" not in node.stdout
    await field.swarm("keys", "trust", key, "the office")
    await state(node, "ready")
    at_home = office.node()
    await state(at_home, "ready")
    async with swarm.connect(office.where[1], "signed") as mesh:
        result = await mesh.infer("digits", {"image": digits()[0][:1]})
        assert result.status == "OK"


async def test_a_node_that_serves_goes_on_when_its_desired_state_is_forged(
    office: Device, field: Device
) -> None:
    node = field.node()
    await state(node, "ready")
    async with swarm.connect(office.where[1], "signed") as mesh:
        bucket = mesh.subjects.config_bucket
        forged = json.dumps({"serve": [{"version": "66", "share": 100}]}).encode()
        await jetstream.kv_put(mesh.link, bucket, "serve.digits", forged)
        await eventually(lambda: "is unsigned" in node.stderr, "it refuses", READY)
        assert (await mesh.infer("digits@1", {"image": digits()[0][:1]})).status == "OK"
        await office.swarm("model", "promote", "digits@1", *office.where)
        assert (await mesh.infer("digits", {"image": digits()[0][:1]})).status == "OK"


async def test_who_starts_when_desired_state_is_spoilt_serves_and_asks_by_the_last_good_one(
    office: Device, field: Device
) -> None:
    async with swarm.connect(office.where[1], "signed", agent="operator") as mesh:
        spoilt = b'{"stream": "KV_swarm-signed-config", "seq": 7}'
        await jetstream.kv_put(mesh.link, mesh.subjects.config_bucket, "serve.digits", spoilt)
    heard: list[bytes] = []
    async with swarm.connect(office.where[1], "signed", agent="new") as mesh:
        rejected = mesh.subjects.event("rejected")
        mesh.link.subscribe(rejected, lambda message: heard.append(bytes(message.data)))
        await mesh.link.flush()
        node = field.node()
        await state(node, "ready")
        assert (await mesh.infer("digits", {"image": digits()[0][:1]})).status == "OK"
        await eventually(lambda: any(b"is unsigned" in e for e in heard), "the event", READY)
    assert "the last value that can be believed holds" in node.stderr
    await office.swarm("model", "promote", "digits@1", *office.where)


async def test_an_unsigned_model_runs_only_where_the_node_was_told_so(
    office: Device, field: Device
) -> None:
    place = ("--nats", office.where[1], "--mesh", "unsigned")
    folder = folder_of("1", office.folder)
    await office.swarm("model", "push", folder, "--sign-with", "none", *place)
    refusing, taking = field.node(*place), field.node(*place, "--allow-unsigned")
    await state(taking, "ready")
    assert "whoever may write to the mesh's store" in taking.stderr
    await eventually(lambda: "is unsigned" in refusing.stderr, "it refuses", READY)
    assert "ready" not in refusing.stdout


async def test_a_rotated_key_signs_and_the_old_one_is_removed(
    office: Device, field: Device
) -> None:
    doc = await office.swarm("keys", "rotate")
    shown = await office.swarm("keys", "show")
    assert shown["public"] == doc["public"] != doc["old"]
    assert set(shown["trusted"]) == {doc["public"], doc["old"]}
    await field.swarm("keys", "trust", doc["public"])
    await office.swarm("model", "push", folder_of("1", office.folder), *office.where)
    await office.swarm("model", "promote", "digits@1", *office.where)
    await field.swarm("keys", "trust", doc["old"], "--remove")
    node = field.node()
    await state(node, "ready")


async def test_a_second_version_is_pushed_beside_swarm_up_and_serves(
    office: Device, run: Commands
) -> None:
    """`up` signs with the user's own key, and so does `push`."""
    file = office.folder / "digits.onnx"
    file.write_bytes(digits_model())
    arguments = ("--model", str(file), "--stages", "1", "--no-fallback", "--mesh", "beside")
    env = {"XDG_CONFIG_HOME": str(office.folder)}
    up = run.start("nodes.cli.main", "up", *arguments, "--json", env=env)
    url = (await asyncio.to_thread(up.ready_line, 3 * READY))["nats"]
    place = ("--nats", url, "--mesh", "beside")
    second = str(office.folder / "second")
    await office.swarm("model", "split", str(file), "-o", second, "--stages", "1", *VERSION_2)
    await office.swarm("model", "push", second, *place)
    await office.swarm("model", "promote", "digits@2", *place)
    async with swarm.connect(url, "beside") as mesh:
        result = await mesh.infer("digits@2", {"image": digits()[0][:1]}, budget=READY)
        assert result.status == "OK"
    up.signal(signal.SIGINT)
    assert await asyncio.to_thread(up.wait, READY) == 0


async def test_keys_that_do_not_do_end_with_2_and_one_line(office: Device, tmp_path: Path) -> None:
    readable, missing = tmp_path / "open", tmp_path / "missing"
    readable.write_bytes((office.folder / "swarm" / "key").read_bytes())
    readable.chmod(0o644)
    arguments = ("model", "promote", "digits@1", "--sign-with", str(readable), *office.where)
    doc = await office.swarm(*arguments, code=2)
    assert f"chmod 600 {readable}" in doc["error"]
    assert "'U'" in (await office.swarm("keys", "trust", "SUNOKEY", code=2))["error"]
    who = ("--role", "fallback", "--model", "digits", *office.where)
    node = await asyncio.to_thread(node_said, *who, "--trust", str(missing))
    assert node.code == 2
    (line,) = node.stderr.splitlines()
    assert str(missing) in line
