"""What a gateway adds to a request: its clients beside a client of the mesh, by turns.

The model computes next to nothing: [1, n] in, sixteen numbers out. All ways ask the same mesh of
one stage, but for the rivals, which are one ONNX Runtime session behind uvicorn, and with
`--rivals` behind mosec and Ray Serve too. Rivals are processes of their own all the time: Ray's use
the cores also while others take their turn.

To add a way, enter a function in `WAYS`: it gets a `Scene`, and gives a function that asks once and
returns the output.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from support.meshes import READY, add_model, mesh_of
from support.ports import free_port
from support.waiting import eventually

from bench.report.figure import Better, Figure, percentile
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import new_table
from bench.rivals.environment import (
    SERVERS_OF_MODELS,
    EnvironmentFailed,
    default_directory,
    ensure_env,
)
from bench.rivals.processes import ONE_THREAD_EACH, Processes, accepts, cpu_with, descendants
from bench.rivals.systems.http_client import HttpClient, HttpError
from bench.rivals.systems.http_contender import OCTETS
from bench.rivals.workload import WrongAnswer
from nodes.console import out
from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess
from shards.split.split import split

SIZES = {"4 KB": 1024, "0.6 MB": 150_528}  # FP32 values: the latter is ResNet-50's input
MESH, HTTP, JSON, RIVAL = "mesh client", "HTTP, binary", "HTTP, JSON", "uvicorn + ONNX Runtime"
GRPC = "gRPC"
MOSEC, RAY = "mosec, bare bytes", "Ray Serve, bare bytes"
SERVERS = {MOSEC: ("mosec", "/inference"), RAY: ("ray", "/")}
"""Servers of models in an environment of their own: the program's word for each, and the path."""
STARTS_WITHIN = 120.0  # seconds
MOST_ADDED = {
    ("4 KB", HTTP): 0.4,
    ("0.6 MB", HTTP): 0.7,
    ("0.6 MB", JSON): 5.0,
    ("4 KB", GRPC): 1.0,
    ("0.6 MB", GRPC): 1.7,
}
"""Milliseconds that a way may add to the mesh client's p50."""
IN_FLIGHT = {"4 KB": 8, "0.6 MB": 4}
KEYS = ("p50_ms", "added_ms", "p99_ms", "per_s", "cpu_ms")
DIGITS = 6  # behind the point, of numbers as text
BUDGET = 30.0  # seconds

Ask = Callable[[], Awaitable[np.ndarray]]


@dataclass(frozen=True)
class GatewayPlan:
    """requests: of one way in one slice, one after the other, and as many at a time again. rivals:
    whether servers of models take part, too, which may have to be installed."""

    requests: int = 300
    rounds: int = 5
    warmup: int = 50
    rivals: bool = False


@dataclass
class Scene:
    """What the ways ask. door: the gateway's HTTP port. grpc: its other address. rivals: ports, and
    ids of processes, by way."""

    local: LocalMesh
    model: str
    x: np.ndarray
    door: int
    grpc: str
    rivals: dict[str, tuple[int, int]]
    ends: contextlib.AsyncExitStack


def _mesh(scene: Scene) -> Ask:
    async def ask() -> np.ndarray:
        result = await scene.local.mesh.infer(scene.model, {"x": scene.x}, BUDGET)
        return result.outputs["y"]

    return ask


def _http(scene: Scene, port: int) -> Ask:
    client = HttpClient(port)
    scene.ends.callback(client.close)
    path, x = f"/v2/models/{scene.model}/infer", scene.x
    entry: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": list(x.shape)}
    entry["parameters"] = {"binary_data_size": x.nbytes}
    document = {"inputs": [entry], "parameters": {"binary_data_output": True}}

    async def ask() -> np.ndarray:
        head = json.dumps(document).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        answered, data = await client.post(path, [head, x.data.cast("B")], headers)
        at = int(answered["inference-header-content-length"])
        output = json.loads(data[:at])["outputs"][0]
        return np.frombuffer(data, np.float32, offset=at).reshape(output["shape"])

    return ask


def _json(scene: Scene) -> Ask:
    client = HttpClient(scene.door)
    scene.ends.callback(client.close)
    entry: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": list(scene.x.shape)}
    # Written once: what it costs a client to write numbers as text is not the gateway's.
    entry["data"] = [round(float(value), DIGITS) for value in scene.x.ravel()]
    body = json.dumps({"inputs": [entry]}, separators=(",", ":")).encode()

    async def ask() -> np.ndarray:
        _, data = await client.post(f"/v2/models/{scene.model}/infer", [body], {})
        output = json.loads(data)["outputs"][0]
        return np.array(output["data"], np.float32).reshape(output["shape"])

    return ask


def _grpc(scene: Scene) -> Ask:
    import grpc.aio

    from nodes.gateway.grpc.messages import INFERENCE, ModelInferRequest, ModelInferResponse

    channel = grpc.aio.insecure_channel(scene.grpc)
    scene.ends.push_async_callback(channel.close)
    infer = channel.unary_unary(
        f"/{INFERENCE}/ModelInfer",
        ModelInferRequest.SerializeToString,
        ModelInferResponse.FromString,
    )

    async def ask() -> np.ndarray:
        request = ModelInferRequest(model_name=scene.model)
        request.inputs.add(name="x", datatype="FP32", shape=scene.x.shape)
        request.raw_input_contents.append(scene.x.tobytes())
        answer = await infer(request)
        raw = np.frombuffer(answer.raw_output_contents[0], np.float32)
        return raw.reshape(tuple(answer.outputs[0].shape))

    return ask


def _bytes(scene: Scene, way: str) -> Ask:
    client = HttpClient(scene.rivals[way][0])
    scene.ends.callback(client.close)
    path = SERVERS[way][1]

    async def ask() -> np.ndarray:
        _, data = await client.post(path, [scene.x.data.cast("B")], OCTETS)
        return np.frombuffer(data, np.float32).reshape(1, -1)

    return ask


WAYS: dict[str, Callable[[Scene], Ask]] = {
    MESH: _mesh,
    HTTP: lambda scene: _http(scene, scene.door),
    JSON: _json,
    GRPC: _grpc,
    RIVAL: lambda scene: _http(scene, scene.rivals[RIVAL][0]),
    MOSEC: lambda scene: _bytes(scene, MOSEC),
    RAY: lambda scene: _bytes(scene, RAY),
}


def _model(values: int) -> bytes:
    """[1, n] in, twice its first sixteen values out."""
    from onnx import TensorProto, helper

    def floats(name: str, size: int) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size])

    bounds = {"from": [0], "to": [16], "axis": [1]}
    constants = [
        helper.make_tensor(name, TensorProto.INT64, [1], value) for name, value in bounds.items()
    ]
    two = helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])
    nodes = [
        helper.make_node("Slice", ["x", *bounds], ["some"]),
        helper.make_node("Mul", ["some", "two"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "first", [floats("x", values)], [floats("y", 16)], [*constants, two]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


async def measure_gateway(plan: GatewayPlan, progress: Progress) -> dict[str, Any]:
    """The document of `swarm bench gateway`. Raises `WrongAnswer`, or the error of a start."""
    figures: dict[str, Figure] = {}
    python, absent = await asyncio.to_thread(_servers, progress) if plan.rivals else ("", "")
    with tempfile.TemporaryDirectory(prefix="gateway-") as folder:
        processes = Processes(Path(folder))
        try:
            async with mesh_of() as local:
                gateway = local.start("gateway", "", "--http", "0", "--grpc", "0")
                await local.ready(READY)
                doors = await eventually(lambda: _doors(local, gateway), "the doors are open")
                for size, values in SIZES.items():
                    progress(f"{size}: starting")
                    name, file = f"first{values}", Path(folder) / f"first{values}.onnx"
                    file.write_bytes(_model(values))
                    result = split(file, name=name, stages=1, profile=False)
                    await add_model(local, result, "shard-1")
                    rivals = await asyncio.to_thread(_rivals, processes, name, str(file), python)
                    x = np.random.default_rng(7).random((1, values), np.float32)
                    async with contextlib.AsyncExitStack() as ends:
                        scene = Scene(local, name, x, doors[0], doors[1], rivals, ends)
                        figures |= await _measured(scene, plan, size, progress)
                    await asyncio.to_thread(processes.stop)
        finally:
            await asyncio.to_thread(processes.stop)
    document = {"figures": {name: figure.as_doc() for name, figure in figures.items()}}
    return {**document, "absent": absent}


def _servers(progress: Progress) -> tuple[str, str]:
    """The interpreter that has the servers of models, or why there is none."""
    progress("installing mosec and Ray Serve into an environment of their own")
    try:
        place = default_directory().with_name("servers-of-models")
        return str(ensure_env(place, requirements=SERVERS_OF_MODELS)), ""
    except EnvironmentFailed as error:
        return "", str(error)


def _rivals(processes: Processes, name: str, file: str, python: str) -> dict[str, tuple[int, int]]:
    """Start the rivals; their ports and processes."""
    port = processes.spawn_module(name, "bench.rivals.systems.bare_uvicorn", file)
    found = {RIVAL: (int(port), processes.newest)}
    for way, (word, _) in SERVERS.items() if python else ():
        port = str(free_port())
        module = "bench.rivals.systems.model_server"
        variables = {**ONE_THREAD_EACH, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        pid = processes.spawn(f"{name}-{word}", [python, "-m", module, word, port, file], variables)
        found[way] = (int(port), pid)
    for way, (bound, _) in found.items():
        processes.wait(partial(accepts, bound), STARTS_WITHIN, way)
    return found


async def _answers(ask: Ask) -> None:
    """Until a server of models, whose port is open before its model is there, gives an answer."""
    async with asyncio.timeout(STARTS_WITHIN):
        while True:
            try:
                await ask()
                return
            except (HttpError, EOFError, OSError):
                await asyncio.sleep(0.1)


def _family(scene: Scene, way: str) -> list[psutil.Process]:
    """The processes that answer one way: a rival's own, or all but the rivals'."""
    trees = {
        name: [psutil.Process(pid), *descendants(pid)] for name, (_, pid) in scene.rivals.items()
    }
    if way in trees:
        return trees[way]
    others = {process.pid for tree in trees.values() for process in tree}
    return [each for each in descendants(os.getpid()) if each.pid not in others]


def _doors(local: LocalMesh, gateway: NodeProcess) -> tuple[int, str] | None:
    """A gateway's port of HTTP and its address of gRPC, once both are open."""
    doors = (local.status_of(gateway) or {}).get("gateway", {}).get("doors", {})
    if not {"http", "grpc"} <= set(doors):
        return None
    return int(doors["http"]["address"].rpartition(":")[2]), str(doors["grpc"]["address"])


async def _measured(
    scene: Scene, plan: GatewayPlan, size: str, progress: Progress
) -> dict[str, Figure]:
    """Figures of one size, by `SIZE/WAY/…`; `added_ms` is taken within each round."""
    absent = set(SERVERS) - set(scene.rivals)
    ways = {name: make(scene) for name, make in WAYS.items() if name not in absent}
    expected = 2 * scene.x[:, :16]

    async def one(ask: Ask) -> float:
        began = time.perf_counter()
        answer = await ask()
        took = time.perf_counter() - began
        if not np.allclose(answer, expected, atol=10**-DIGITS):
            raise WrongAnswer(f"{size}: {answer!r:.200}")
        return 1e3 * took

    async def in_turn(ask: Ask, requests: list[None]) -> None:
        while requests:
            requests.pop()
            await one(ask)

    for ask in ways.values():
        await _answers(ask)
        for _ in range(plan.warmup):
            await one(ask)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for number, name in by_turns(plan.rounds, list(ways)):
        progress(f"{size}, round {number} of {plan.rounds}: {name}")
        requests = plan.requests if name != JSON or size == "4 KB" else plan.requests // 4 or 1
        alone = [await one(ways[name]) for _ in range(requests)]
        family, left = _family(scene, name), [None] * requests
        cpu, began = cpu_with(family), time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(IN_FLIGHT[size]):
                group.create_task(in_turn(ways[name], left))
        took = time.perf_counter() - began
        found[name].append(
            {
                "p50_ms": percentile(alone, 0.5),
                "p99_ms": percentile(alone, 0.99),
                "per_s": requests / took,
                "cpu_ms": 1e3 * (cpu_with(family) - cpu) / requests,
            }
        )
    figures: dict[str, Figure] = {}
    for name, rounds in found.items():
        for key in rounds[0]:
            better: Better = "higher" if key == "per_s" else "lower"
            values = [each[key] for each in rounds]
            figures[f"{size}/{name}/{key}"] = Figure.of(values, key.rpartition("_")[2], better)
        pairs = list(zip(rounds, found[MESH], strict=True))
        added = [each["p50_ms"] - mesh["p50_ms"] for each, mesh in pairs]
        ratios = [each["p50_ms"] / mesh["p50_ms"] for each, mesh in pairs]
        figures[f"{size}/{name}/added_ms"] = Figure.of(added, "ms")
        figures[f"{size}/{name}/p50_over_mesh"] = Figure.of(ratios, "x", floor=True)
    return figures


def show(document: dict[str, Any]) -> None:
    """One table for each size."""
    figures = {name: Figure.from_doc(doc) for name, doc in document["figures"].items()}
    for size in SIZES:
        headings = ("p50 ms (rounds)", "added ms", "p99 ms", "requests/s", "CPU ms")
        table = new_table(f"{size} of input", "way", *headings)
        for name in (each for each in WAYS if f"{size}/{each}/p50_ms" in figures):
            own = {key: figures[f"{size}/{name}/{key}"] for key in KEYS}
            cells = [f"{own[key].value:.3g}" for key in KEYS[1:]]
            table.add_row(name, str(own["p50_ms"]), *cells)
        out.print(table)
    if document["absent"]:
        out.print(f"mosec and Ray Serve are left out: {document['absent']}", markup=False)
    out.print(
        "One in flight for the times; requests/s and CPU, of client and servers together, with "
        f"{' and '.join(map(str, IN_FLIGHT.values()))} in flight. Each answer was compared."
    )


def misses(document: dict[str, Any]) -> list[str]:
    """The targets that are missed."""
    found = []
    for (size, name), most in MOST_ADDED.items():
        added = document["figures"][f"{size}/{name}/added_ms"]["value"]
        if added > most:
            found.append(f"{size}, {name}: adds {added} ms to the mesh client, of {most} at most")
    return found


GATEWAY = Benchmark("gateway", measure_gateway, show, misses=misses)
