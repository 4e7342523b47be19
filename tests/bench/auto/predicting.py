"""Random plans on devices of a part of a core: what the planner predicts beside the running mesh.

Each plan is drawn by its number: a model, one to four stages, cuts, a share of a core for each. A
stage is a node process under a quota of a control group, so the asker and the server compute on
what is left. Messages go through the server, as between devices.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from support.starved import starved
from zoo.builders import resnet50

from bench.report.figure import significant
from bench.report.frame import Benchmark, Progress
from bench.report.tables import new_table
from bench.rivals.ultraface import ultraface_file
from nodes.auto.commands.planning import Measured, measured_of
from nodes.console import out
from nodes.up.mesh import local_mesh, push
from shards.auto.predict import Range, computed_ms, predict
from shards.auto.problem import Device, PlanningProblem
from shards.split.split import split
from shards.zoo import digits_model
from swarm.mesh import Mesh

MODELS = ("digits", "ultraface", "resnet50")
SHARES = (1.0, 0.5, 0.25)  # of a core
MOST_SHARE = 1.25  # of all devices of a plan: the machine may have two cores
MOST_STAGES = 4
PERIOD = 0.01  # seconds of a quota: behind each stall the caches are cold
WITHIN = 0.15  # of what is measured
REST = 0.01  # seconds between two lone requests: of a quota's period, so that it is whole again
IN_FLIGHT = 8
BUDGET = 20.0  # seconds
ASKER = "asker"


@dataclass(frozen=True)
class PredictPlan:
    """first, last: numbers of plans. requests: lone ones. seconds: of a closed loop."""

    first: int = 1
    last: int = 20
    requests: int = 30
    seconds: float = 3.0


@dataclass(frozen=True)
class Drawn:
    """A plan. shares: of a core, by stage. ranges: of segments."""

    model: str
    shares: tuple[float, ...]
    ranges: tuple[Range, ...]


def draw(number: int, segments: Mapping[str, int]) -> Drawn:
    """The plan of a number. segments: how many each model has."""
    chance = random.Random(number)
    model = MODELS[number % len(MODELS)]
    stages = chance.randint(1, MOST_STAGES)
    shares: list[float] = []
    while len(shares) != stages or sum(shares) > MOST_SHARE:
        shares = [chance.choice(SHARES) for _ in range(stages)]
    count = segments[model]
    cuts = sorted(chance.sample(range(1, count), stages - 1))
    ends = zip([0, *cuts], [*cuts, count], strict=True)
    ranges = (Range(start, end, (f"d{at}",)) for at, (start, end) in enumerate(ends, 1))
    return Drawn(model, tuple(shares), tuple(ranges))


def problem_of(drawn: Drawn, measured: Measured) -> PlanningProblem:
    """The devices of a plan, and one that only asks."""
    devices = [
        Device(f"d{at}", share=share, period_ms=PERIOD * 1e3)
        for at, share in enumerate(drawn.shares, 1)
    ]
    return PlanningProblem(
        measured.segments,
        (*devices, Device(ASKER, memory=1)),
        source=ASKER,
        input_bytes=measured.input_bytes,
    )


async def measure(plan: PredictPlan, progress: Progress) -> dict[str, Any]:
    """The document. Raises `Unavailable`, and `ValueError` without UltraFace's file."""
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        files = _files(Path(folder))
        progress("timing the segments of three models")
        measured = {
            name: await asyncio.to_thread(measured_of, str(file), True)
            for name, file in files.items()
        }
        counts = {name: len(each.segments) for name, each in measured.items()}
        for number in range(plan.first, plan.last + 1):
            drawn = draw(number, counts)
            progress(f"plan {number}: {drawn.model}, shares {drawn.shares}")
            problem = problem_of(drawn, measured[drawn.model])
            found = predict(problem, drawn.ranges)
            computed = [
                computed_ms(problem, device, each.start, each.end)
                for device, each in zip(problem.devices, drawn.ranges, strict=False)
            ]
            row = {
                "number": number,
                "model": drawn.model,
                "shares": drawn.shares,
                "ends": [each.end for each in drawn.ranges],
                "predicted_ms": significant(found.latency_ms),
                "predicted_rate": significant(found.rate),
                "predicted_cpu_ms": [significant(each) for each in computed],
            }
            rows.append(row | await _run(plan, drawn, measured[drawn.model], files[drawn.model]))
    return {"plan": asdict(plan), "rows": rows, "figures": {}, **summary(rows)}


def _files(folder: Path) -> dict[str, Path]:
    digits, resnet = folder / "digits.onnx", folder / "resnet50.onnx"
    digits.write_bytes(digits_model())
    resnet.write_bytes(resnet50(96, batch=1))
    return {"digits": digits, "ultraface": ultraface_file(), "resnet50": resnet}


async def _run(plan: PredictPlan, drawn: Drawn, measured: Measured, file: Path) -> dict[str, Any]:
    """A lone request's milliseconds and requests a second of the mesh that runs a plan."""
    cuts = [list(measured.cuts[each.end - 1]) for each in drawn.ranges[:-1]]
    result = await asyncio.to_thread(split, file, name="predicted", cuts=cuts, profile=False)
    rng = np.random.default_rng(3)
    inputs = {
        spec.name: rng.random([max(1, d) for d in spec.shape], np.float32)
        for spec in result.manifest.inputs
    }
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(local_mesh(shm=False))
        await push(local, result.manifest.to_json(), result.files)
        nodes = [
            local.start(f"shard-{stage}", "predicted", "--no-shm", "--max-batch", "1")
            for stage in range(1, len(drawn.shares) + 1)
        ]
        await local.ready(60.0)
        for node, share in zip(nodes, drawn.shares, strict=True):
            await stack.enter_async_context(starved(node.pid, share, PERIOD))
        await _alone(local.mesh, inputs, 5)
        alone = await _alone(local.mesh, inputs, plan.requests)
        before = [_computed(node.pid) for node in nodes]
        rate, asked = await _closed_loop(local.mesh, inputs, plan.seconds)
        used = [_computed(node.pid) - each for node, each in zip(nodes, before, strict=True)]
    return {
        "measured_ms": significant(median(alone)),
        "measured_rate": significant(rate),
        "measured_cpu_ms": [significant(each * 1e3 / asked) for each in used],
    }


def _computed(pid: int) -> float:
    """Seconds of a core that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _alone(mesh: Mesh, inputs: Mapping[str, np.ndarray], count: int) -> list[float]:
    took = []
    for _ in range(count):
        await asyncio.sleep(REST)
        began = time.perf_counter()
        await mesh.infer("predicted", dict(inputs), BUDGET)
        took.append((time.perf_counter() - began) * 1e3)
    return took


async def _closed_loop(
    mesh: Mesh, inputs: Mapping[str, np.ndarray], seconds: float
) -> tuple[float, int]:
    """Answers a second with so many requests in flight, without the first third; all answers."""
    ends: list[float] = []
    began = time.perf_counter()

    async def keep_asking() -> None:
        while time.perf_counter() - began < seconds:
            await mesh.infer("predicted", dict(inputs), BUDGET)
            ends.append(time.perf_counter())

    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(keep_asking())
    first, last = began + seconds / 3, began + seconds
    return sum(first < end <= last for end in ends) / (last - first), len(ends)


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How far predictions are off: as shares of what was measured."""
    found: dict[str, Any] = {}
    for name in ("ms", "rate"):
        off = [abs(off_by(row, name)) for row in rows]
        found[f"{name}_off_median"] = significant(median(off))
        found[f"{name}_within"] = sum(each <= WITHIN for each in off)
    return found


def off_by(row: Mapping[str, Any], name: str) -> float:
    """0.1: a tenth too much is predicted. name: `ms` or `rate`."""
    return float(row[f"predicted_{name}"] / row[f"measured_{name}"] - 1)


def show(document: dict[str, Any]) -> None:
    """Print the document of `measure`."""
    names = ("plan", "model", "shares", "ms", "measured", "off", "1/s", "measured", "off")
    table = new_table("predicted beside measured", *names, left=3)
    for row in document["rows"]:
        figures = []
        for name in ("ms", "rate"):
            figures += [f"{row[f'predicted_{name}']:.4g}", f"{row[f'measured_{name}']:.4g}"]
            figures.append(f"{off_by(row, name):+.0%}")
        shares = " ".join(f"{share:g}" for share in row["shares"])
        table.add_row(str(row["number"]), row["model"], shares, *figures)
    out.print(table)
    out.print(
        f"off in the median: {document['ms_off_median']:.0%} of a latency, "
        f"{document['rate_off_median']:.0%} of a rate; within {WITHIN:.0%}: "
        f"{document['ms_within']} and {document['rate_within']} of {len(document['rows'])}",
        highlight=False,
    )


def misses(document: dict[str, Any]) -> list[str]:
    """A sentence for each plan whose prediction is far off."""
    return [
        f"plan {row['number']} ({row['model']}): {name} is off by {off_by(row, name):+.0%}"
        for row in document["rows"]
        for name in ("ms", "rate")
        if abs(off_by(row, name)) > WITHIN
    ]


PREDICTED = Benchmark("plan --predict", measure, show, misses=misses)
