"""`swarm bench compose`: a composition beside the same models that a client asks by hand.

Both ask the same nodes, by turns in one run, from three places: on the nodes' host (handed over),
by the server alone, and over a link with a delay (`far`), where each turn between client and mesh
is waited for. Both have the same budget; by hand the client divides it itself.

Under kill -9 both ask at the same time, each model and the composition has two nodes, and one node
after the other is killed; those of the composition, too, which the client by hand does not need.
What is compared is what becomes of requests while nodes die. A client that dies takes its requests
with it in either way: nothing is said of that.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from support.commands import said
from support.meshes import LOOPBACK, READY, add_model, all_ready, close, mesh_of

import swarm
from bench.asked import kind
from bench.compose.chaos import NO_CHAOS, Chaos, under_chaos
from bench.compose.far import FarLink
from bench.compose.scenes import Scene, Tensors, cascade, faces, hop, views
from bench.paced import paced
from bench.report.figure import Figure, percentile
from bench.report.frame import Benchmark, Progress, by_turns
from bench.report.tables import new_table
from bench.rivals.ultraface import NoModel
from nodes.compose.model import models_of, signature_of
from nodes.console import out
from nodes.up.mesh import LocalMesh, push
from nodes.up.supervisor import NodeProcess
from shards.compose.both_ways import both_ways, choice
from shards.compose.composition import AskPart, from_toml
from shards.compose.fit import cheapest, curve, point, set_aside, wilson
from shards.manifest import read_dir
from shards.samples import Samples
from shards.split.split import split
from swarm.errors import SwarmError, Unavailable

OURS, HAND = "composition", "by hand"
WAYS = (OURS, HAND)
HOST, SERVER, FAR = "same host", "by the server", "far"
BUDGET = 10.0  # seconds
WARM_UP = 20  # requests of each way from each place
TOLERANCE = 1e-4  # of an output's largest value
QUIET = 1.0  # seconds before a kill, while all nodes are ready
# Requests a second of each way, while nodes die; and the share of the time that requests may take,
# one after the other: where the nodes left are too few for the load, some are refused.
MOST_RATE, BUSY = 20.0, 0.2
CHAOS_RATE = 10.0  # requests a second of each way, at most, under the faults of `swarm bench chaos`
GRACE = 1.0  # seconds past its budget after which a request is lost
ACCURACY = 0.975  # that the cascade's threshold is fitted for
COMPOSED = "composed"  # the name of the composition in its mesh


@dataclass(frozen=True)
class ComposePlan:
    """requests: of one way from one place in one round. delay: seconds, each way, of the far
    client. kills: of nodes. ultraface: its file."""

    scenes: Sequence[str]
    requests: int = 60
    rounds: int = 5
    delay: float = 0.005
    kills: int = 12
    ultraface: str = ""
    chaos: Chaos = NO_CHAOS


Ask = Callable[[Tensors, float], Awaitable[Tensors]]


def _asks(scene: Scene, way: str, mesh: swarm.Mesh) -> Ask:
    async def composed(inputs: Tensors, budget: float) -> Tensors:
        return (await mesh.infer(COMPOSED, inputs, budget)).outputs

    async def by_hand(inputs: Tensors, budget: float) -> Tensors:
        return await scene.by_hand(mesh, inputs, budget)

    return composed if way == OURS else by_hand


async def measure(plan: ComposePlan, progress: Progress) -> dict[str, Any]:
    """The document of `swarm bench compose`."""
    makers: dict[str, Callable[[], Scene]] = {
        "hop": hop,
        "cascade": cascade,
        "faces": lambda: faces(plan.ultraface),
        "views": views,
    }
    unknown = set(plan.scenes) - makers.keys()
    if unknown:
        raise ValueError(f"--only {', '.join(sorted(unknown))}: there are {', '.join(makers)}")
    scenes: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    figures: dict[str, Any] = {}
    for name in plan.scenes:
        progress(f"{name}: models …")
        try:
            scene = await asyncio.to_thread(makers[name])
        except NoModel as error:
            skipped[name] = str(error)
            continue
        scenes[name] = await _play(scene, plan, progress)
        for key, each in scenes[name].pop("figures", {}).items():
            figures[f"{name}/{key}"] = each.as_doc()
    return {
        "requests": plan.requests,
        "rounds": plan.rounds,
        "delay_ms": plan.delay * 1e3,
        "skipped": skipped,
        "scenes": scenes,
        "figures": figures,
    }


async def _play(scene: Scene, plan: ComposePlan, progress: Progress) -> dict[str, Any]:
    async with mesh_of() as local:
        for name, model in scene.models.items():
            result = await asyncio.to_thread(split, model, name=name, stages=1, bandwidth=LOOPBACK)
            await add_model(local, result, "shard-1")
        document: dict[str, Any] = {}
        if scene.name == "cascade":
            progress("cascade: its threshold …")
            document["fit"] = await _fitted(scene, local)
            scene = cascade(document["fit"]["threshold"])
        await _compose(scene, local)
        document["accuracy"] = await _accuracy(scene, local.mesh)
        if plan.chaos.seconds:
            document["chaos"] = await _chaos(scene, plan.chaos, local, progress)
            return document
        figures, places = await _timed(scene, plan, local, progress)
        document |= {"places": places, "figures": figures}
        if plan.kills:
            ms = sum(of["p50_ms"] for of in places[HOST].values())
            rate = min(MOST_RATE, BUSY * 1e3 / ms)
            document["killed"] = await _killed(scene, plan, rate, local, progress)
    return document


async def _compose(scene: Scene, local: LocalMesh) -> None:
    """Build the composition as a user does, push it, and start a node of it."""
    with TemporaryDirectory(prefix="swarm-compose-") as root:
        file, folder = Path(root) / f"{COMPOSED}.toml", Path(root) / "built"
        file.write_text(scene.declared, encoding="utf-8")
        built = await asyncio.to_thread(
            said,
            *("compose", "build", str(file), "-o", str(folder)),
            *("--nats", local.url, "--mesh", local.name),
        )
        if built.code:
            raise Unavailable(built.stderr)
        manifest, fetch = await asyncio.to_thread(read_dir, folder)
        await push(local, manifest.to_json(), {name: fetch(name) for name in manifest.files()})
    local.start("shard-1", COMPOSED)
    await local.ready(READY)


async def _fitted(scene: Scene, local: LocalMesh) -> dict[str, Any]:
    """As `swarm compose fit` does it."""
    names = dict.fromkeys(("small", "large"), "1")
    composition = from_toml(scene.declared).pinned(names)
    part = choice(composition)

    async def ask(part: AskPart, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        answer = await local.mesh.infer(f"{part.model}@{part.version}", tensors, BUDGET)
        return dict(answer.outputs)

    images = np.concatenate([each["image"] for each in scene.inputs])
    models = await models_of(local.mesh, composition)
    scores = await both_ways(
        composition,
        {name: signature_of(info) for name, info in models.items()},
        Samples({"image": images}, scene.labels),
        ask,
        part=part,
        output=scene.judged,
    )
    fitted_on, held = set_aside(len(scores), 0.3)
    points = curve(scores.only(fitted_on), below=True)
    chosen = cheapest(points, ACCURACY)
    on_held = point(scores.only(held), chosen.threshold, below=True)
    some = points[:: max(1, len(points) // 12)]
    return {
        "threshold": chosen.threshold,
        "share": chosen.share,
        "accuracy": chosen.accuracy,
        "ms": chosen.cost_ms,
        "held_out": [on_held.accuracy, *wilson(on_held.right, len(held))],
        "small": [float(scores.otherwise.mean()), scores.otherwise_ms],
        "large": [float(scores.then.mean()), scores.then_ms],
        "curve": [[each.threshold, each.share, each.accuracy, each.cost_ms] for each in some],
    }


async def _accuracy(scene: Scene, mesh: swarm.Mesh) -> dict[str, Any]:
    """Of all inputs, by both ways, and of one view alone where there are two. differ: answers of
    the composition that are not those by hand."""
    right = dict.fromkeys((*WAYS, "one view"), 0)
    differ = 0
    for inputs, label in zip(scene.inputs, scene.labels, strict=True):
        answers = [await _asks(scene, way, mesh)(inputs, BUDGET) for way in WAYS]
        for way, answer in zip(WAYS, answers, strict=True):
            right[way] += _class(answer[scene.judged]) == label
        one, other = (answer[scene.judged] for answer in answers)
        differ += not _same(one, other)
        if scene.one_alone is not None:
            output, view = scene.one_alone(inputs)
            answer = (await mesh.infer("large", view, BUDGET)).outputs
            right["one view"] += _class(answer[output]) == label
    count = len(scene.labels)
    found: dict[str, Any] = {way: round(number / count, 4) for way, number in right.items()}
    if scene.one_alone is None:
        del found["one view"]
    return {**found, "of": count, "differ": differ}


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return close(one, other, TOLERANCE) if one.dtype.kind == "f" else np.array_equal(one, other)


def _class(array: np.ndarray) -> int:
    return int(array.argmax() if array.dtype.kind == "f" else array.reshape(-1)[0])


# --- latency and bytes ---------------------------------------------------------------------------


@asynccontextmanager
async def _places(
    local: LocalMesh, delay: float
) -> AsyncIterator[tuple[dict[str, swarm.Mesh], FarLink]]:
    server = local.server
    assert server is not None
    async with contextlib.AsyncExitStack() as stack:
        port = int(local.url.rsplit(":", 1)[1])
        link = await stack.enter_async_context(FarLink(port, delay))
        far = f"nats://127.0.0.1:{link.port}"
        settings: dict[str, Any] = {"two_connections": False}
        clients = {
            HOST: swarm.connect(local.url, local.name),
            SERVER: swarm.connect(local.url, local.name, shm=False, **settings),
            FAR: swarm.connect(far, local.name, shm=False, **settings),
        }
        for client in clients.values():
            await stack.enter_async_context(client)
        yield clients, link


async def _timed(
    scene: Scene, plan: ComposePlan, local: LocalMesh, progress: Progress
) -> tuple[dict[str, Figure], dict[str, Any]]:
    took: dict[tuple[str, str], list[list[float]]] = {}
    counted: dict[str, list[int]] = {way: [0, 0, 0] for way in WAYS}
    async with _places(local, plan.delay) as (clients, link):
        turns = [(place, way) for place in clients for way in WAYS]
        names = [f"{place}/{way}" for place, way in turns]
        for place, way in turns:
            await _ask_all(_asks(scene, way, clients[place]), scene, 0, WARM_UP)
        for number, turn in by_turns(plan.rounds, names):
            place, way = turns[names.index(turn)]
            progress(f"{scene.name}: round {number}, {place}, {way} …")
            before = link.sent, link.received
            ask = _asks(scene, way, clients[place])
            ms = await _ask_all(ask, scene, number * plan.requests, plan.requests)
            took.setdefault((place, way), []).append(ms)
            if place == FAR:
                counted[way][0] += link.sent - before[0]
                counted[way][1] += link.received - before[1]
                counted[way][2] += plan.requests
    figures: dict[str, Figure] = {}
    document: dict[str, Any] = {}
    for place in (HOST, SERVER, FAR):
        for key, share in (("p50", 0.5), ("p99", 0.99)):
            by = {way: [percentile(ms, share) for ms in took[place, way]] for way in WAYS}
            ratios = [a / b for a, b in zip(by[OURS], by[HAND], strict=True)]
            figures[f"{place}/{key}_over_by_hand"] = Figure.of(ratios, "x", floor=True)
            added = [a - b for a, b in zip(by[OURS], by[HAND], strict=True)]
            figures[f"{place}/{key}_added_ms"] = Figure.of(added, "ms")
        document[place] = {
            way: {
                key: round(percentile([ms for each in took[place, way] for ms in each], share), 3)
                for key, share in (("p50_ms", 0.5), ("p99_ms", 0.99))
            }
            for way in WAYS
        }
    document["bytes_a_request"] = {
        way: {"sent": round(sent / of), "received": round(received / of)}
        for way, (sent, received, of) in counted.items()
    }
    return figures, document


async def _ask_all(ask: Ask, scene: Scene, start: int, count: int) -> list[float]:
    """Milliseconds of requests, one after the other."""
    ms = []
    for number in range(start, start + count):
        inputs = scene.inputs[number % len(scene.inputs)]
        began = time.perf_counter()
        await ask(inputs, BUDGET)
        ms.append((time.perf_counter() - began) * 1e3)
    return ms


# --- kill -9 -------------------------------------------------------------------------------------


async def _killed(
    scene: Scene, plan: ComposePlan, rate: float, local: LocalMesh, progress: Progress
) -> dict[str, Any]:
    """What became of requests while nodes were killed, by way; each had a second one beside it."""
    order = await _second_nodes(scene, local)
    began = time.monotonic()
    killing = asyncio.create_task(_kill(order, plan.kills, local, progress))
    told = await _both_ways(scene, local, rate, BUDGET, killing)
    seconds = round(time.monotonic() - began, 1)
    return {"kills": plan.kills, "seconds": seconds, "per_s": round(rate, 1), **told}


async def _chaos(
    scene: Scene, chaos: Chaos, local: LocalMesh, progress: Progress
) -> dict[str, Any]:
    await _second_nodes(scene, local)
    ms = 0.0
    for way in WAYS:
        ms += percentile(await _ask_all(_asks(scene, way, local.mesh), scene, 0, WARM_UP), 0.5)
    rate = min(CHAOS_RATE, BUSY * 1e3 / ms)
    told: dict[str, Any] = {"per_s": round(rate, 1)}

    async def load(faults: Awaitable[Any]) -> None:
        falling = asyncio.ensure_future(faults)
        told.update(await _both_ways(scene, local, rate, chaos.budget, falling))

    progress(f"{scene.name}: faults for {chaos.seconds:g} s …")
    return await under_chaos(chaos, local, load) | told


async def _second_nodes(scene: Scene, local: LocalMesh) -> list[NodeProcess]:
    """One more node of each model and of the composition; all of them, so that a node of each comes
    first."""
    nodes = list(local.supervisor.nodes)
    for name in (*scene.models, COMPOSED):
        local.start("shard-1", name)
    await local.ready(READY)
    return [*nodes, *local.supervisor.nodes[len(nodes) :]]


async def _both_ways(
    scene: Scene, local: LocalMesh, rate: float, budget: float, faults: asyncio.Future[Any]
) -> dict[str, Any]:
    """Ask by both ways at once until the faults have fallen; what became of the requests."""
    expected: dict[int, Tensors] = {}
    for place, inputs in enumerate(scene.inputs[:20]):
        expected[place] = await _asks(scene, HAND, local.mesh)(inputs, BUDGET)
    outcomes: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    asks = {way: _asks(scene, way, local.mesh) for way in WAYS}

    async def ask(way: str, number: int) -> None:
        place = number % len(expected)
        record: dict[str, Any] = {"status": "lost", "ms": 0.0}
        outcomes[way].append(record)
        began = time.perf_counter()
        try:
            async with asyncio.timeout(budget + GRACE):
                answer = await asks[way](scene.inputs[place], budget)
            wanted = expected[place][scene.judged]
            right = _same(answer[scene.judged], wanted)
            record["status"] = "answered" if right else "wrong"
        except SwarmError as error:
            record |= {"status": str(error.status), "message": kind(str(error))}
        except TimeoutError:
            pass
        record["ms"] = (time.perf_counter() - began) * 1e3

    async with asyncio.TaskGroup() as group:
        async for number, _ in paced(rate):
            if faults.done():
                break
            for way in WAYS:
                group.create_task(ask(way, number))
    return {way: _told(outcomes[way]) for way in WAYS}


async def _kill(
    nodes: Sequence[NodeProcess], kills: int, local: LocalMesh, progress: Progress
) -> None:
    """The next one once all are ready again: how long a start takes is the machine's."""
    for number in range(kills):
        await asyncio.sleep(QUIET)
        node = nodes[number % len(nodes)]
        progress(f"kill -9, {number + 1} of {kills} …")
        node.signal(signal.SIGKILL)
        await all_ready(local)
    await asyncio.sleep(QUIET)


def _told(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    answered = [each["ms"] for each in records if each["status"] == "answered"]
    statuses = [each["status"] for each in records]
    return {
        "requests": len(records),
        **{status: statuses.count(status) for status in sorted(set(statuses))},
        "p50_ms": round(percentile(answered, 0.5), 2),
        "p99_ms": round(percentile(answered, 0.99), 2),
        "slowest_ms": round(max(answered, default=0.0), 1),
        "errors": dict(Counter(r["message"] for r in records if "message" in r).most_common(4)),
    }


# --- told ----------------------------------------------------------------------------------------


def show(document: dict[str, Any]) -> None:
    """For people."""
    table = new_table(
        "ms of a request: p50 and p99; ratio of p50, median of rounds (smallest-largest)",
        *("scene", "client", OURS, "p99", HAND, "p99", "ratio"),
        left=2,
    )
    timed = {name: scene for name, scene in document["scenes"].items() if "places" in scene}
    for name, scene in timed.items():
        for place in (HOST, SERVER, FAR):
            cells = []
            for way in WAYS:
                of = scene["places"][place][way]
                cells += [f"{of['p50_ms']:.3g}", f"{of['p99_ms']:.3g}"]
            ratio = Figure.from_doc(document["figures"][f"{name}/{place}/p50_over_by_hand"])
            table.add_row(name, place, *cells, str(ratio))
    if timed:
        out.print(table)
    table = new_table(
        "bytes of a request through the client's connection; accuracy",
        *("scene", f"{OURS} sent", "received", f"{HAND} sent", "received", "accuracy", "differ"),
    )
    for name, scene in timed.items():
        cells = []
        for way in WAYS:
            of = scene["places"]["bytes_a_request"][way]
            cells += [str(of["sent"]), str(of["received"])]
        accuracy = scene["accuracy"]
        alone = f" (one view {accuracy['one view']:.4f})" if "one view" in accuracy else ""
        table.add_row(name, *cells, f"{accuracy[OURS]:.4f}{alone}", str(accuracy["differ"]))
    if timed:
        out.print(table)
    for name, scene in document["scenes"].items():
        if fit := scene.get("fit"):
            out.print(
                f"{name}: small {fit['small'][0]:.4f} in {fit['small'][1]:.3g} ms, large "
                f"{fit['large'][0]:.4f} in {fit['large'][1]:.3g} ms; chosen margin < "
                f"{fit['threshold']:.4g}: {fit['accuracy']:.4f} in {fit['ms']:.3g} ms "
                f"({fit['share']:.1%} ask the large), held out {fit['held_out'][0]:.4f} "
                f"({fit['held_out'][1]:.3f}-{fit['held_out'][2]:.3f})",
                markup=False,
            )
        if chaos := scene.get("chaos"):
            for key, value in chaos.items():
                out.print(f"{name}, chaos, {key}: {value}", markup=False)
        if killed := scene.get("killed"):
            for way in WAYS:
                out.print(f"{name}, {killed['kills']} kill -9, {way}: {killed[way]}", markup=False)
    for name, why in document["skipped"].items():
        out.print(f"{name}: skipped, {why}", markup=False)


def misses(document: dict[str, Any]) -> list[str]:
    """Requests of a composition that were lost, refused or answered wrongly."""
    found = []
    for name, scene in document["scenes"].items():
        if scene["accuracy"]["differ"]:
            found.append(f"{name}: {scene['accuracy']['differ']} answers are not those by hand")
        if chaos := scene.get("chaos"):
            ours = chaos[OURS]
            if bad := ours.get("wrong", 0) + ours.get("lost", 0):
                found.append(f"{name}: {bad} requests were lost or answered wrongly under chaos")
            failed = ours["requests"] - ours.get("answered", 0)
            most = max(chaos["longest_away_s"].values()) * 1e3
            if failed and most < chaos["budget_ms"]:
                found.append(
                    f"{name}: {failed} requests failed though no model was away for their budget"
                )
        killed = scene.get("killed", {}).get(OURS)
        if killed and (failed := killed["requests"] - killed.get("answered", 0)):
            found.append(f"{name}: {failed} requests were not answered rightly under kill -9")
    return found


COMPOSE = Benchmark("compose", measure, show, misses=misses)
