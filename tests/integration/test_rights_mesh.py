"""A whole mesh under rights, with TLS: it serves, takes over, changes versions, and is denied
nothing that it needs."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from support.commands import commands
from support.meshes import READY, Load, add_model, close, digits, split_digits
from support.waiting import eventually

import swarm
from nodes.up.mesh import LocalMesh, local_mesh, push
from shards.zoo import digits_model

pytestmark = [pytest.mark.integration, pytest.mark.processes]

ROLES = ("shard-1", "shard-2", "shard-3", "fallback")


@pytest.fixture
async def secured() -> AsyncIterator[LocalMesh]:
    async with local_mesh(secure=True) as local:
        await add_model(local, split_digits("1"), *ROLES)
        yield local


def violations(local: LocalMesh) -> list[str]:
    assert local.server is not None
    return [line for line in local.server.log.splitlines() if "iolation" in line]


async def test_a_mesh_serves_takes_over_and_changes_versions_without_a_violation(
    secured: LocalMesh,
) -> None:
    local = secured
    assert local.rights is not None
    assert local.server is not None
    client = local.rights.issue("client", "digits")
    requester = local.rights.issue("requester", "digits")
    edge = local.start(
        "edge", "digits", "--source", "digits", "--rate", "20", "--sink", "demo", "--budget", "5000"
    )
    results: list[bytes] = []
    local.mesh.link.subscribe(
        local.mesh.subjects.results("demo"), lambda message: results.append(bytes(message.data))
    )
    await local.ready(READY)
    async with (
        swarm.connect(local.url, agent="c", **client.options()) as asks,
        swarm.connect(local.url, agent="r", **requester.options()) as sends,
    ):
        for mesh, delivery in ((asks, "durable"), (sends, "durable"), (sends, "fast")):
            load = Load(mesh, 25, delivery=delivery)
            await load.run(25)
            load.check(25)

        victim = next(n for n in local.supervisor.nodes if n.role == "shard-2")
        victim.wanted = False
        victim.signal(signal.SIGKILL)
        load = Load(sends, 25)
        await load.run(50)
        print(
            load.failures[:3],
            violations(local),
            *[local.tail(n) for n in local.supervisor.nodes],
            sep="\n",
        )
        load.check(50)
        victim.start()
        victim.wanted = True
        await local.ready(READY)

        second = split_digits("2")
        await push(local, second.manifest.to_json(), second.files)
        await eventually(lambda: serves(local, "2"), "version 2 serves", READY)
        load = Load(sends, 25)
        await load.run(25)
        load.check(25)
        assert {result.version for result in load.results[-5:]} == {"2"}
        await local.mesh.registry.rollback("digits")
        await eventually(lambda: serves(local, "1"), "version 1 serves again", READY)
        images, logits = digits()
        answer = await asks.infer("digits", {"image": images[:1]}, 5.0)
        assert close(answer.outputs["logits"], logits[:1])
        assert answer.version == "1"
    assert results, "the edge's results are heard"
    assert edge.alive
    assert violations(local) == []


@pytest.mark.benchmark  # a whole story, longer than ten seconds
def test_up_secure_prints_how_to_ask_and_refuses_everybody_else(tmp_path: Path) -> None:
    model = tmp_path / "digits.onnx"
    model.write_bytes(digits_model())
    images, logits = digits()
    np.savez(tmp_path / "x.npz", image=images[:1])
    ask = ("infer", "digits", "--input", str(tmp_path / "x.npz"), "--json", "--nats")
    with commands(tmp_path / "commands") as run:
        http = ("--http", "--http-port", "0")
        up = run.start("nodes.cli.main", "up", "--model", str(model), "--secure", "--json", *http)
        ready = up.ready_line()
        assert ready["secure"] is True
        files = ("--credentials", ready["credentials"], "--tls-ca", ready["tls_ca"])
        answer = run.swarm(*ask, ready["nats"], *files)
        outputs = json.loads(answer.stdout)["outputs"][0]["data"]
        assert close(np.array([outputs], np.float32), logits[:1])
        stranger = run.swarm(*ask, ready["nats"], *files[2:])
        assert stranger.process.returncode == 2
        assert json.loads(stranger.stdout)["status"] == "UNAUTHENTICATED"
        assert http_code(f"{ready['http']}/v2/models/digits", ready["http_key"]) == 200
        assert http_code(f"{ready['http']}/v2/models/digits", "swk_of_nobody") == 401
        up.signal(signal.SIGINT)
        assert up.wait() == 0
        assert not Path(ready["credentials"]).exists(), "the keys end with the command"


def http_code(url: str, key: str) -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"})
    try:
        with urllib.request.urlopen(request, timeout=READY) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def serves(local: LocalMesh, version: str) -> bool:
    """Whether each node's last status is of this version alone."""
    ready = [local.status_of(node) for node in local.supervisor.nodes]
    return all(
        status is not None
        and status["state"] == "ready"
        and status["version"] == version
        and {stage["version"] for stage in status["stages"]} <= {version}
        for status in ready
    )
