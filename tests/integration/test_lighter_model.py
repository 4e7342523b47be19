"""A lighter model is the last resort of every kind of client, whatever has befallen the model."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import nats
import numpy as np
import pytest
import pytest_asyncio
from support.commands import said
from support.gateways import address, ask, gateway_of
from support.meshes import LOOPBACK, READY, add_model, digits, mesh_of, split_digits, whole
from support.waiting import eventually

import swarm
from nodes.up.mesh import LocalMesh, push
from nodes.up.supervisor import NodeProcess
from shards.split.split import SplitResult, split
from shards.zoo import digits_lite_model
from swarm.errors import DeadlineExceeded, InvalidArgument, SwarmError, Unavailable

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

BUDGET = 0.6  # seconds
LITE = "digits_lite"


@dataclass(frozen=True)
class Answer:
    """What a client of any kind makes of an answer. model: that answered, "" for a failure."""

    model: str
    degraded: bool
    logits: np.ndarray | None = None


FAILED = Answer("", False)


def named(result: SplitResult, model: str, degrades: bool = False) -> SplitResult:
    """The version with a lighter model."""
    lighter = {"model": model, "version": "", "degrades": degrades}
    parts = {**result.manifest.parts, "lighter_model": lighter}
    return replace(result, manifest=replace(result.manifest, parts=parts))


def lite() -> SplitResult:
    return split(digits_lite_model(), name=LITE, stages=1, bandwidth=LOOPBACK)


@dataclass
class Scene:
    local: LocalMesh
    stages: dict[int, NodeProcess]
    gateway: NodeProcess
    image: np.ndarray

    @property
    def body(self) -> dict[str, Any]:
        data = self.image.ravel().tolist()
        shape = list(self.image.shape)
        tensor = {"name": "image", "datatype": "FP32", "shape": shape, "data": data}
        return {"inputs": [tensor]}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def scene() -> AsyncIterator[Scene]:
    images, _ = digits()
    async with mesh_of(lite(), "shard-1") as local:
        roles = ("shard-1", "shard-2")
        first, second = await add_model(local, named(split_digits(stages=2), LITE), *roles)
        gateway = await gateway_of(local, "--http", "0", "--grpc", "0")
        yield Scene(local, {1: first, 2: second}, gateway, images[:1])


# --- clients --------------------------------------------------------------------------------


async def by_python(scene: Scene, allowed: bool | None) -> Answer:
    return await _answer(
        scene.local.mesh.infer("digits", {"image": scene.image}, BUDGET, allow_degraded=allowed)
    )


async def by_nats_py(scene: Scene, allowed: bool | None) -> Answer:
    connection = await nats.connect(scene.local.url)
    try:
        async with swarm.over(connection, scene.local.name) as mesh:
            return await _answer(
                mesh.infer("digits", {"image": scene.image}, BUDGET, allow_degraded=allowed)
            )
    finally:
        await connection.close()


async def by_json(scene: Scene, allowed: bool | None) -> Answer:
    mesh = scene.local.mesh
    asked = json.dumps(scene.body | {"parameters": _said(allowed, budget_ms=BUDGET * 1e3)})
    message = await mesh.link.request(mesh.subjects.infer("digits"), asked.encode(), 2 * BUDGET)
    return _of_document(json.loads(bytes(message.data)))


async def by_http(scene: Scene, allowed: bool | None) -> Answer:
    url = f"{address(scene.local, scene.gateway)}/v2/models/digits/infer"
    body = scene.body | {"parameters": _said(allowed, timeout=int(BUDGET * 1e6))}
    _, _, document = await asyncio.to_thread(ask, url, body)
    return _of_document(document)


async def by_grpc(scene: Scene, allowed: bool | None) -> Answer:
    return await asyncio.to_thread(_by_grpc, scene, allowed)


def _by_grpc(scene: Scene, allowed: bool | None) -> Answer:
    from tritonclient import grpc

    client = grpc.InferenceServerClient(address(scene.local, scene.gateway, "grpc"))
    tensor = grpc.InferInput("image", list(scene.image.shape), "FP32")
    tensor.set_data_from_numpy(scene.image)
    try:
        answer = client.infer(
            "digits", [tensor], timeout=int(BUDGET * 1e6), parameters=_said(allowed)
        )
    except grpc.InferenceServerException:
        return FAILED
    response = answer.get_response()
    degraded = response.parameters["degraded"].bool_param
    return Answer(response.model_name, degraded, answer.as_numpy("logits"))


CLIENTS: list[Callable[[Scene, bool | None], Awaitable[Answer]]]
CLIENTS = [by_python, by_nats_py, by_json, by_http, by_grpc]


async def _answer(asked: Awaitable[swarm.Result]) -> Answer:
    try:
        result = await asked
    except (DeadlineExceeded, Unavailable):
        return FAILED
    return Answer(result.model, result.degraded, result.outputs["logits"])


def _said(allowed: bool | None, **more: Any) -> dict[str, Any]:
    return more if allowed is None else more | {"allow_degraded": allowed}


def _of_document(document: dict[str, Any]) -> Answer:
    if "error" in document:
        return FAILED
    degraded = document["parameters"]["degraded"]
    logits = np.array(document["outputs"][0]["data"], np.float32).reshape(1, -1)
    return Answer(document["model_name"], degraded, logits)


# --- what befalls the model -------------------------------------------------------------------


def kill(scene: Scene, *stages: int) -> Callable[[], None]:
    """Kill nodes with SIGKILL, and keep them away; returns what lets them start again."""
    victims = [scene.stages[stage] for stage in stages]
    for victim in victims:
        victim.wanted = False
        victim.signal(signal.SIGKILL)

    def back() -> None:
        for victim in victims:
            victim.wanted = True

    return back


def hang(scene: Scene, *stages: int) -> Callable[[], None]:
    """Stop nodes where they are; returns what lets them go on."""
    for stage in stages:
        scene.stages[stage].signal(signal.SIGSTOP)

    def back() -> None:
        for stage in stages:
            scene.stages[stage].signal(signal.SIGCONT)

    return back


CAUSES = {
    "no node of stage 2": (kill, 2),
    "no node of stage 1": (kill, 1),
    "no node at all": (kill, 1, 2),
    "stage 2 hangs": (hang, 2),
}


async def test_a_model_that_is_well_answers_itself(scene: Scene) -> None:
    for client in CLIENTS:
        for allowed in (None, True, False):
            answer = await client(scene, allowed)
            assert (answer.model, answer.degraded) == ("digits", False), client


@pytest.mark.parametrize("cause", CAUSES)
async def test_each_kind_of_client_gets_a_degraded_answer_where_it_allows_one(
    scene: Scene, cause: str
) -> None:
    begin, *stages = CAUSES[cause]
    expected = whole(digits_lite_model(), [{"image": scene.image}])[0]["logits"]
    back = begin(scene, *stages)
    try:
        for client in CLIENTS:
            for allowed in (None, False):
                assert await client(scene, allowed) == FAILED, (client, allowed)
            began = time.monotonic()
            answer = await client(scene, True)
            assert (answer.model, answer.degraded) == (LITE, True), client
            assert answer.logits is not None
            assert np.allclose(answer.logits, expected, atol=1e-4)
            assert time.monotonic() - began < 2 * BUDGET  # the machine is busy, the budget is not
    finally:
        back()
    await _is_well(scene)


async def test_nodes_of_the_lighter_model_answer_where_no_gateway_does(scene: Scene) -> None:
    """All that listens at `infer.digits` then is a node of the other model."""
    gateway, back = scene.gateway, kill(scene, 1, 2)
    gateway.signal(signal.SIGSTOP)
    try:

        async def degraded() -> bool:  # a request that the stopped gateway gets is asked again
            return (await by_nats_py(scene, True)).degraded

        await eventually(degraded, "somebody answers", READY)
    finally:
        gateway.signal(signal.SIGCONT)
        back()
    await _is_well(scene)


async def test_degraded_answers_are_counted_by_the_model_that_was_asked(scene: Scene) -> None:
    status = scene.local.status_of(scene.gateway)
    assert status is not None
    assert status["requests"]["degraded"]["digits"] >= 2
    at = ("--nats", scene.local.url, "--mesh", scene.local.name)
    told = await asyncio.to_thread(said, "status", "--json", *at)
    (note,) = json.loads(told.stdout)["notes"]
    of_all = len(CAUSES) * len(CLIENTS)  # by the nodes of the lighter model, whoever asked
    assert (note["model"], note["about"]) == ("digits", "lighter model")
    assert int(note["cells"]["since the nodes' start"]) >= of_all
    told = await asyncio.to_thread(said, "status", *at)
    assert "lighter model of digits@1: degraded answers, 5 minutes: " in told.stdout
    assert "DEADLINE_EXCEEDED" in told.stdout


@pytest.mark.parametrize(
    ("model", "why"),
    [("absent", "not in this mesh"), ("other", "no input 'image'")],
)
async def test_a_lighter_model_that_cannot_answer_is_refused_at_the_push(
    scene: Scene, model: str, why: str
) -> None:
    if model == "other":
        shape = split(_renamed(), name="other", stages=1, profile=False)
        await push(scene.local, shape.manifest.to_json(), shape.files)
    wrong = named(split_digits("77", stages=2), model)
    with pytest.raises(InvalidArgument, match=why):
        await push(scene.local, wrong.manifest.to_json(), wrong.files)


def _renamed() -> bytes:
    import onnx

    model = onnx.load_model_from_string(digits_lite_model())
    old = model.graph.input[0].name
    model.graph.input[0].name = "picture"
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name == old:
                node.input[place] = "picture"
    return bytes(model.SerializeToString())


async def test_the_owner_may_let_it_answer_whoever_does_not_refuse(scene: Scene) -> None:
    """Version 2 degrades by default, and serves from here on."""
    second = named(split_digits("2", stages=2), LITE, degrades=True)
    await push(scene.local, second.manifest.to_json(), second.files)
    mesh, inputs = scene.local.mesh, {"image": scene.image}

    async def serves() -> bool:
        return (await mesh.infer("digits", inputs)).version == "2"

    await eventually(serves, "version 2 answers", READY)
    back = kill(scene, 1, 2)
    try:
        assert (await mesh.infer("digits", inputs, BUDGET)).degraded
        with pytest.raises(SwarmError):
            await mesh.infer("digits", inputs, BUDGET, allow_degraded=False)
    finally:
        back()
    await _is_well(scene)


async def test_commands_say_it_too_and_doctor_misses_a_lighter_model_without_nodes(
    scene: Scene, tmp_path: Any
) -> None:
    local = scene.local
    at = ("--nats", local.url, "--mesh", local.name)
    back = kill(scene, 2)
    try:
        told = await asyncio.to_thread(
            said, "infer", "digits", "--random", "--budget", "600ms", "--allow-degraded", *at
        )
        assert told.code == 0, told.stderr
        assert f"{LITE}@1 answered; degraded: " in told.stdout
    finally:
        back()
    await _is_well(scene)
    told = await asyncio.to_thread(said, "doctor", *at)
    assert "lighter model" not in told.stdout
    lighter = next(n for n in local.supervisor.nodes if LITE in n.arguments)
    for sign in (signal.SIGTERM, signal.SIGKILL):  # of one that is killed the others hear later
        lighter.wanted = False
        lighter.signal(sign)
        try:
            await eventually(lambda: not lighter.alive, "it ends")
            told = await asyncio.to_thread(said, "doctor", *at)
            assert told.code == 1, sign
            assert f"stage 1 of {LITE}@1 has no ready node" in " ".join(told.stdout.split())
        finally:
            lighter.wanted = True
        await eventually(lambda: lighter.alive, "it starts again")
        await local.ready(READY)
        assert "lighter model" not in (await asyncio.to_thread(said, "doctor", *at)).stdout


async def _is_well(scene: Scene) -> None:
    async def is_well() -> bool:
        answers = [await client(scene, None) for client in (by_python, by_json, by_http)]
        return [answer.model for answer in answers] == ["digits"] * 3

    await eventually(is_well, "the model answers again", READY)
