"""A model with a guard in a mesh of real nodes: every client sees what is unfamiliar."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio
from support.commands import said
from support.compositions import compose
from support.gateways import address, ask, gateway_of
from support.meshes import LOOPBACK, close, digits, mesh_of, split_digits
from support.waiting import eventually

from nodes.gateway.grpc.messages import ModelInferRequest, ModelInferResponse
from nodes.up.mesh import LocalMesh, push
from shards.manifest import read_dir, write_dir
from shards.split.split import SplitResult, split
from shards.zoo import digits_model, digits_training
from swarm.errors import InvalidArgument
from swarm.wire import oip
from swarm.wire.messages import Result

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]


def named(name: str) -> SplitResult:
    return split(digits_model(), name=name, version="1", stages=2, bandwidth=LOOPBACK)


async def push_guarded(local: LocalMesh, folder: Path, made: SplitResult, *flags: str) -> None:
    """As an owner does it: split, `swarm model guard`, push."""
    write_dir(folder / made.manifest.model, made.manifest, made.files)
    np.savez(folder / "samples.npz", image=digits_training()[0])
    told = await asyncio.to_thread(
        said,
        *("model", "guard", str(folder / made.manifest.model)),
        *("--samples", str(folder / "samples.npz"), *flags),
    )
    assert told.code == 0, told.stderr
    manifest, fetch = read_dir(folder / made.manifest.model)
    await push(local, manifest.to_json(), {name: fetch(name) for name in manifest.files()})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def local(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalMesh]:
    """`digits` without a guard, `guarded` with one, `strict` with one that refuses, `kept` with one
    and kept answers."""
    folder = tmp_path_factory.mktemp("guards")
    async with mesh_of(split_digits(stages=2), "shard-1", "shard-2") as made:
        await push_guarded(made, folder, named("guarded"))
        await push_guarded(made, folder, named("strict"), "--refuse")
        kept = named("kept")
        parts = {"cache": {"bytes": 1 << 20, "age_s": 600.0}}
        kept = replace(kept, manifest=replace(kept.manifest, parts=parts))
        await push_guarded(made, folder, kept)
        for model in ("guarded", "strict", "kept"):
            for role in ("shard-1", "shard-2"):
                made.start(role, model)
        await made.ready(60.0)
        yield made


def usual_and_not() -> np.ndarray:
    """Three digits, the second one inverted."""
    images = digits_training()[0][:3].copy()
    images[1] = 1 - images[1]
    return images


async def test_a_result_names_the_rows_that_are_unfamiliar_and_has_its_outputs(
    local: LocalMesh,
) -> None:
    images, expected = digits()
    usual = await local.mesh.infer("guarded", {"image": digits_training()[0][:1]}, 10.0)
    assert 0 < usual.unfamiliarity <= 1
    assert usual.unfamiliar_rows == ""
    rows = np.concatenate([images[:1], 1 - images[:2]])
    answer = await local.mesh.infer("guarded", {"image": rows}, 10.0)
    assert answer.unfamiliarity > 1
    assert answer.unfamiliar_rows == "1,2"
    assert close(answer.outputs["logits"][:1], expected[:1])


async def test_requests_that_share_runs_are_judged_each_for_itself(local: LocalMesh) -> None:
    images = digits_training()[0][:60]
    asked = [image[None] if number % 2 else 1 - image[None] for number, image in enumerate(images)]
    answers = await asyncio.gather(
        *(local.mesh.infer("guarded", {"image": image}, 20.0) for image in asked)
    )
    found = [answer.unfamiliarity > 1 for answer in answers]
    assert all(found[0::2])
    assert sum(found[1::2]) <= 2, "of 30 usual ones"


async def test_a_model_without_a_guard_says_nothing_of_it(local: LocalMesh) -> None:
    answer = await local.mesh.infer("digits", {"image": usual_and_not()}, 10.0)
    assert (answer.unfamiliarity, answer.unfamiliar_rows) == (0.0, "")
    assert not any(hop.extra for hop in answer.hops)


async def test_an_owner_may_have_unfamiliar_requests_refused_and_others_are_answered(
    local: LocalMesh,
) -> None:
    images = digits_training()[0][:20]

    async def outcome(number: int) -> str:
        image = images[number][None]
        try:
            await local.mesh.infer("strict", {"image": image if number % 2 else 1 - image}, 20.0)
        except InvalidArgument as error:
            return str(error)
        return ""

    found = await asyncio.gather(*(outcome(number) for number in range(20)))
    assert all("as its owner wants" in text for text in found[0::2])
    assert found[1::2].count("") >= 8


async def test_nats_clients_http_and_grpc_see_it(local: LocalMesh, tmp_path: Path) -> None:
    array = usual_and_not()
    entry = {"name": "image", "datatype": "FP32", "shape": [3, 1, 8, 8]}
    body = {"inputs": [entry | {"data": array.reshape(-1).tolist()}]}
    subject = local.mesh.subjects.infer("guarded")
    answer = await local.mesh.link.request(subject, json.dumps(body).encode(), timeout=20.0)
    wanted: dict[str, Any] = {"unfamiliar": True, "unfamiliar_rows": "1"}
    assert wanted.items() <= json.loads(bytes(answer.data))["parameters"].items()
    assert oip.decode_result(bytes(answer.data)).outputs["logits"].shape == (3, 10)

    gateway = await gateway_of(local, "--http", "0", "--grpc", "0")
    url = f"{address(local, gateway)}/v2/models/guarded/infer"
    code, _, document = await asyncio.to_thread(ask, url, body)
    assert code == 200
    assert wanted.items() <= document["parameters"].items()
    assert document["parameters"]["unfamiliarity"] > 1

    async with grpc.aio.insecure_channel(address(local, gateway, "grpc")) as channel:
        request = ModelInferRequest(model_name="guarded")
        request.inputs.add(name="image", datatype="FP32", shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
        infer = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=ModelInferRequest.SerializeToString,
            response_deserializer=ModelInferResponse.FromString,
        )
        response = await infer(request, timeout=20.0)
    assert response.parameters["unfamiliar"].bool_param
    assert response.parameters["unfamiliarity"].double_param > 1
    assert response.parameters["unfamiliar_rows"].string_param == "1"

    np.savez(tmp_path / "rows.npz", image=array)
    target = ["--input", str(tmp_path / "rows.npz"), "--nats", local.url, "--mesh", local.name]
    shown = await asyncio.to_thread(said, "infer", "guarded", *target)
    assert "unfamiliar to the model" in shown.stdout
    as_json = await asyncio.to_thread(said, "infer", "guarded", *target, "--json")
    assert wanted.items() <= json.loads(as_json.stdout).items()


async def test_statuses_count_the_rows(local: LocalMesh) -> None:
    def counted() -> dict[str, Any]:
        rows = [
            row
            for node in local.supervisor.nodes
            for row in (local.status_of(node) or {}).get("guards", ())
            if row["model"] == "guarded"
        ]
        return {name: sum(row[name] for row in rows) for name in ("rows", "unfamiliar", "failed")}

    for _ in range(20):
        await local.mesh.infer("guarded", {"image": usual_and_not()}, 10.0)

    def told() -> bool:
        found = counted()
        return found["rows"] >= 60 and found["unfamiliar"] >= 20 and not found["failed"]

    await eventually(told, "60 rows, 20 of them unfamiliar")
    at = ("--nats", local.url, "--mesh", local.name)
    shown = (await asyncio.to_thread(said, "status", *at)).stdout
    (line,) = [each for each in shown.splitlines() if each.startswith("guard of guarded@1: ")]
    assert "bound: 5.0%; above it since: 2" in line


async def test_kept_answers_hide_nothing_unfamiliar(local: LocalMesh) -> None:
    usual, strange = digits_training()[0][:1], 1 - digits_training()[0][:1]

    async def ask_kept(image: np.ndarray) -> Result:
        return await local.mesh.infer("kept", {"image": image}, 20.0)

    async def is_kept() -> bool:
        return (await ask_kept(usual)).cached_ms is not None

    await eventually(is_kept, "a usual answer is kept")
    answers = await asyncio.gather(*(ask_kept(strange) for _ in range(10)))
    answers += [await ask_kept(strange) for _ in range(5)]
    assert all(answer.unfamiliarity > 1 and answer.cached_ms is None for answer in answers)


COMPOSITION = """
[inputs]
image = { datatype = "FP32", shape = [1, 1, 8, 8] }

[[part]]
name = "sure"
model = "digits"
inputs = { image = "image" }

[[part]]
name = "watched"
model = "guarded"
inputs = { image = "image" }

[[part]]
name = "both"
mean = ["sure.logits", "watched.logits"]

[outputs]
logits = "both.mean"
"""


async def test_a_composition_says_which_of_its_parts_is_asked_for_what_it_is_not_made_for(
    local: LocalMesh, tmp_path: Path
) -> None:
    await compose(local, tmp_path, COMPOSITION, "watched")
    local.start("shard-1", "watched")
    await local.ready(60.0)
    image = digits_training()[0][:1]
    usual = await local.mesh.infer("watched", {"image": image}, 20.0)
    assert 0 < usual.unfamiliarity <= 1
    strange = await local.mesh.infer("watched", {"image": 1 - image}, 20.0)
    assert strange.unfamiliarity > 1
    assert strange.hops[-1].extra["unfamiliar_parts"] == {"watched": strange.unfamiliarity}
    assert strange.outputs["logits"].shape == (1, 10)
