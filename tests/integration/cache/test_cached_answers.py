"""Answers that are kept, in a mesh of real nodes: every client profits, and nothing stale comes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import nats
import numpy as np
import onnx
import pytest
import pytest_asyncio
from support.commands import said
from support.gateways import address, ask, gateway_of
from support.meshes import add_model, close, digits, mesh_of, split_digits
from support.waiting import eventually
from tritonclient.grpc import InferenceServerClient, InferInput

import swarm
from nodes.up.mesh import LocalMesh, push
from shards.manifest import read_dir
from shards.split.split import SplitResult
from shards.weights.onnx_file import OnnxFile
from shards.zoo import digits_model
from swarm.learning.weights import Weights
from swarm.security.identity import Identity

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]
IMAGES, LOGITS = digits()


def cached(version: str = "1", stages: int = 2, age: float = 600.0) -> SplitResult:
    result = split_digits(version, stages)
    parts = {**result.manifest.parts, "cache": {"bytes": 1 << 20, "age_s": age}}
    return replace(result, manifest=replace(result.manifest, parts=parts))


def counters(local: LocalMesh) -> dict[str, int]:
    """Of all nodes, of the digits model."""
    found: dict[str, int] = {}
    for node in local.supervisor.nodes:
        for row in (local.status_of(node) or {}).get("cache", []):
            for name, count in row["counters"].items():
                found[name] = found.get(name, 0) + count
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def local() -> AsyncIterator[LocalMesh]:
    """Two stages on two nodes, and a gateway."""
    async with mesh_of(cached(), "shard-1", "shard-2") as made:
        await gateway_of(made, "--http", "0", "--grpc", "0")
        yield made


async def kept(mesh: swarm.Mesh, image: np.ndarray) -> swarm.Result:
    """Ask until a kept answer comes."""
    async with asyncio.timeout(30.0):
        while (result := await mesh.infer("digits", {"image": image}, 10.0)).cached_ms is None:
            pass
    return result


async def test_a_kept_answer_serves_http_grpc_nats_and_python(local: LocalMesh) -> None:
    image = IMAGES[:1]
    first = await kept(local.mesh, image)
    assert close(first.outputs["logits"], LOGITS[:1])
    assert [hop.stage for hop in first.hops] == [1]
    gateway = local.supervisor.nodes[-1]

    document = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8]}
    document |= {"data": image.reshape(-1).tolist()}
    url = f"{address(local, gateway)}/v2/models/digits/infer"
    code, headers, answer = await asyncio.to_thread(ask, url, {"inputs": [document]})
    assert code == 200
    assert headers["cache-status"] == "swarm; hit"
    assert int(headers["age"]) >= 0
    assert answer["parameters"]["cached"] is True
    assert answer["outputs"][0]["data"] == pytest.approx(LOGITS[0], rel=1e-4)

    def by_grpc() -> bool:
        with InferenceServerClient(address(local, gateway, "grpc")) as client:
            given = InferInput("image", [1, 1, 8, 8], "FP32")
            given.set_data_from_numpy(image)
            said = client.infer("digits", [given]).get_response().parameters
            return bool(said["cached"].bool_param)

    assert await asyncio.to_thread(by_grpc)

    client = await nats.connect(local.url)
    try:
        subject = f"swarm.{local.name}.infer.digits"
        said = await client.request(subject, json.dumps({"inputs": [document]}).encode(), timeout=9)
        parameters = json.loads(said.data)["parameters"]
        assert parameters["cached"] is True
        assert parameters["age_ms"] > 0
    finally:
        await client.close()
    shown = await asyncio.to_thread(
        said_of, "infer", "digits", "--random", "--repeat", "3", "--nats", local.url,
        "--mesh", local.name, "--json",
    )  # fmt: skip
    assert shown["cached"] is True


def said_of(*words: str) -> dict[str, object]:
    told = said(*words)
    assert told.code == 0, told.stderr
    document: dict[str, object] = json.loads(told.stdout)
    return document


async def test_equal_requests_at_once_are_computed_once_and_nobody_sees_where_copies_go(
    local: LocalMesh,
) -> None:
    image = IMAGES[1:2]
    await local.mesh.infer("digits", {"image": IMAGES[2:3]}, 10.0)
    answers = await asyncio.gather(
        *(local.mesh.infer("digits", {"image": image}, 10.0) for _ in range(40))
    )
    assert sum(answer.cached_ms is None for answer in answers) == 1
    assert all(close(answer.outputs["logits"], LOGITS[1:2]) for answer in answers)
    seen = {key for answer in answers for hop in answer.hops for key in hop.extra}
    assert seen == {"cached_ms"}


async def test_a_session_is_computed(local: LocalMesh) -> None:
    await kept(local.mesh, IMAGES[3:4])
    for _ in range(3):
        answer = await local.mesh.infer("digits", {"image": IMAGES[3:4]}, 10.0, "mine")
        assert answer.cached_ms is None


async def test_what_fails_is_not_kept_and_a_killed_last_stage_loses_no_request(
    local: LocalMesh,
) -> None:
    last = local.supervisor.nodes[1]
    assert last.process is not None
    before = last.process.pid
    asked = [
        asyncio.create_task(local.mesh.infer("digits", {"image": IMAGES[n % 7 + 10][None]}, 60.0))
        for n in range(70)
    ]
    last.process.kill()
    for n, answer in enumerate(await asyncio.gather(*asked)):
        assert close(answer.outputs["logits"], LOGITS[n % 7 + 10][None])
    await eventually(lambda: last.process is not None and last.process.pid != before, "it is back")


async def test_another_version_and_other_weights_answer_anew() -> None:
    base_version = cached()  # each split of its own would be cut where that one's times say
    last = base_version.manifest.shard(2)
    async with mesh_of(base_version, "shard-1", "shard-2") as local:
        weights = Weights(local.mesh.link, local.mesh.subjects, Identity.make())
        base = (await kept(local.mesh, IMAGES[:1])).outputs["logits"]
        file = OnnxFile(base_version.files[last.file])
        names = ("logits.weight", "logits.bias")
        held = await weights.read("digits", "1")
        record = await weights.mint(
            *("digits", "1", last.sha256, held),
            {name: file.weight(name) * np.float32(2) for name in names},
            by="test",
            at=time.time(),
            accuracy=None,
            samples=0,
            taught=[],
        )
        assert record is not None
        newer = await local.mesh.infer("digits", {"image": IMAGES[:1]}, 30.0, weights=record.n)
        assert close(newer.outputs["logits"], 2 * base, 1e-4)
        # From the first answer of the new weights on, no older one comes.
        for _ in range(5):
            answer = await local.mesh.infer("digits", {"image": IMAGES[:1]}, 30.0)
            assert close(answer.outputs["logits"], 2 * base, 1e-4)
            assert answer.weights == record.n
        await kept(local.mesh, IMAGES[:1])
        await push(local, cached("2").manifest.to_json(), cached("2").files)
        async with asyncio.timeout(60.0):
            while True:
                with suppress(swarm.Unavailable):
                    answer = await local.mesh.infer("digits", {"image": IMAGES[:1]}, 30.0)
                    if answer.version == "2":
                        break
        assert answer.cached_ms is None
        assert close(answer.outputs["logits"], base, 1e-4)


async def test_a_version_that_keeps_nothing_has_no_cache(local: LocalMesh) -> None:
    plain = split_digits(stages=1)
    named = replace(plain, manifest=replace(plain.manifest, model="plain"))
    await add_model(local, named, "shard-1")
    for _ in range(3):
        answer = await local.mesh.infer("plain", {"image": IMAGES[:1]}, 10.0)
        assert answer.cached_ms is None
    rows = [
        row["model"]
        for node in local.supervisor.nodes
        for row in (local.status_of(node) or {}).get("cache", [])
    ]
    assert set(rows) == {"digits"}
    await eventually(lambda: counters(local).get("hits", 0) > 0, "hits are told")


async def test_split_writes_the_bounds_and_refuses_what_is_none(tmp_path: Path) -> None:
    model = tmp_path / "digits.onnx"
    onnx.save(digits_model(), str(model))
    told = await asyncio.to_thread(
        said,
        "model", "split", str(model), "--stages", "1", "--cache", "1.5MB", "--cache-age", "2min",
        "-o", str(tmp_path / "out"),
    )  # fmt: skip
    assert told.code == 0, told.stderr
    assert "1.5 MB" in told.stderr + told.stdout
    manifest, _ = read_dir(tmp_path / "out")
    assert manifest.parts["cache"] == {"bytes": 1_500_000, "age_s": 120.0}
    for number, wrong in enumerate((("--cache", "64"), ("--cache", "0MB"), ("--cache", "-1MB"))):
        words = ("model", "split", str(model), *wrong, "-o", str(tmp_path / f"no{number}"))
        told = await asyncio.to_thread(said, *words)
        assert told.code != 0
        assert "--cache" in told.stderr
        assert not (tmp_path / f"no{number}").exists()
