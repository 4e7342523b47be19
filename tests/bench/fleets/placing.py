"""Three unlike devices and nine links: each way of a request measured, and the edge's own choice.

The edge has a quarter of a core, and computes the stages before the cut. The first half of the
other stages has a whole core, the second half one half of a core. Two rules that know no link stand
beside: equal cuts, and layers in proportion to memory, as exo places them
(exo-explore/exo, `RingMemoryWeightedPartitioningStrategy`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from support.slow_link import slow_link, unavailable
from support.starved import starved
from zoo.builders import mobilenet, resnet50

from bench.fleets.links import Shape
from bench.helpers import helper
from bench.report.figure import percentile, significant
from bench.report.frame import Benchmark, Progress
from nodes.console import out
from nodes.placing.ways import AUTO, EDGE
from nodes.up.embedded_server import EmbeddedServer
from nodes.up.mesh import local_mesh, push
from shards.split.split import SplitResult, split
from swarm.errors import SwarmError, Unavailable

EDGE_SHARE, SECOND_SHARE = 0.25, 0.5  # of a core
MEMORY = (0.25, 1.0, 1.0)  # of the three devices, as exo weighs them
PERIOD = 0.01  # seconds of a quota
STAGES = 4
ALONE = 40  # requests of the edge's own choice before the measurement
WITHIN = 1.1  # times the best way
LONGEST = 200.0  # seconds for one link
READY = 90.0  # seconds for a node to become ready
# Builder, height and width of the picture, and the tensors to cut behind.
MODELS = {
    "mobilenet": (
        mobilenet,
        224,
        ["group_2.block_2.sum", "group_4.block_4.sum", "group_6.block_1.project"],
    ),
    "resnet50": (
        resnet50,
        96,
        ["group_1.block_3.sum.relu", "group_2.block_4.sum.relu", "group_3.block_5.sum.relu"],
    ),
}
LINKS = tuple(Shape(mbit, trip, 0) for mbit in (5, 20, 100) for trip in (2, 10, 50))


@dataclass(frozen=True)
class PlacePlan:
    """model: of `MODELS`. rounds: requests of each way, in turn. codec: `none`, or `auto`, which
    loses nothing."""

    model: str = "mobilenet"
    rounds: int = 9
    links: tuple[Shape, ...] = LINKS
    codec: str = AUTO


async def measure(plan: PlacePlan, progress: Progress) -> dict[str, Any]:
    """The document. Raises `Unavailable` where no link can be made, with the reason."""
    if why := unavailable():
        raise Unavailable(f"no link can be made here: {why}")
    builder, size, cuts = MODELS[plan.model]
    progress("splitting the model")
    model = await asyncio.to_thread(split, builder(size, batch=1), name="placed", cuts=cuts)
    cells: list[dict[str, Any]] = []
    failed: list[str] = []
    for shape in plan.links:
        progress(f"{plan.model}: {shape}")
        try:
            cells.append(asdict(shape) | await _cell(plan, model, [1, 3, size, size], shape))
        except (SwarmError, OSError, TimeoutError) as error:  # the other links are measured
            failed.append(f"{shape}: {type(error).__name__}: {error}")
    if not cells:
        raise Unavailable(f"no link was measured: {'; '.join(failed)}")
    return {"plan": asdict(plan), "rivals": rivals(model), "cells": cells, "failed": failed}


async def _cell(
    plan: PlacePlan, model: SplitResult, shape: list[int], link_shape: Shape
) -> dict[str, Any]:
    """One link: milliseconds of each way, and what the edge chose."""
    words = ["--codec", plan.codec, "--no-shm", "--max-batch", "1"]
    async with AsyncExitStack() as stack:
        link = stack.enter_context(slow_link(link_shape.mbit, link_shape.round_trip_ms / 1e3))
        server = await stack.enter_async_context(EmbeddedServer(host=link.address))
        local = await stack.enter_async_context(local_mesh(url=server.url, shm=False))
        await push(local, model.manifest.to_json(), model.files)
        stages = [local.start(f"shard-{stage}", "placed", *words) for stage in range(1, STAGES + 1)]
        await local.ready(READY)
        asks: list[Any] = [server.url, local.name, local.trusted, "placed", shape, ALONE]
        asker = await stack.enter_async_context(
            helper("bench.fleets.placing_edge", asks, inside=link.inside)
        )
        sent = (await asker.answer(within=READY))["ways"]
        held = [(asker.process.pid, EDGE_SHARE)]
        held += [(stage.pid, SECOND_SHARE) for stage in stages[STAGES // 2 :]]
        methods = {
            await stack.enter_async_context(starved(pid, share, PERIOD)) for pid, share in held
        }
        await asker.answer(0, LONGEST)  # warm
        measured = await asker.answer(plan.rounds, LONGEST)
    # The lower quartile: others use this machine too.
    took = {
        name: significant(percentile(times, 0.25)) for name, times in measured["took_ms"].items()
    }
    own, chosen = took.pop(AUTO), Counter(measured["chosen"])
    best = min(took, key=lambda name: took[name])
    choice = sum(took[way] * count for way, count in chosen.items()) / chosen.total()
    return {
        "ms": took,
        "sent": sent,
        "best": best,
        "auto_ms": own,
        "chosen": dict(chosen),
        "ratio": significant(own / took[best]),
        "choice": significant(choice / took[best]),
        "held_by": sorted(methods),
    }


def rivals(model: SplitResult) -> dict[str, str]:
    """The ways that rules without a link take: the cut whose share of layers is the nearest."""
    shards = model.manifest.shards
    layers = shards[-1].end
    shares = {"core": 0.0} | {
        f"split@{shard.stage + 1}": shard.end / layers for shard in shards[:-1]
    }

    def nearest(share: float) -> str:
        return min(shares, key=lambda name: abs(shares[name] - share))

    return {
        "equal": nearest(1 / len(MEMORY)),
        "exo": nearest(MEMORY[0] / sum(MEMORY)),
    }


LEGEND = """\
link: Mbit/s / round trip in ms. @K: split before stage K; * the best. /best: the edge's own
requests as times of the best way's. choice: the same of the fixed ways that it chose. equal, exo:
of the way that the rule takes."""


def show(document: dict[str, Any]) -> None:
    """Print the document of `measure`."""
    rules = document["rivals"]
    ways = list(document["cells"][0]["ms"])
    title = f"{document['plan']['model']}: ms of a request, lower quartile"
    names = ["link", *[way.replace("split@", "@") for way in ways], "auto", "took"]
    shown = Table(*names, "/best", "choice", *rules, title=title)
    for cell in document["cells"]:
        best = cell["ms"][cell["best"]]
        row = [f"{cell['mbit']:g}/{cell['round_trip_ms']:g}"]
        row += [f"{cell['ms'][way]:.0f}" + ("*" if way == cell["best"] else "") for way in ways]
        often = max(cell["chosen"], key=cell["chosen"].__getitem__)
        row += [f"{cell['auto_ms']:.0f}", often.replace("split@", "@")]
        row += [f"{cell['ratio']:.2f}", f"{cell['choice']:.2f}"]
        row += [f"{cell['ms'][way] / best:.2f}" for way in rules.values()]
        shown.add_row(*row)
    out.print(shown)
    out.print(LEGEND, highlight=False)
    pays = [c for c in document["cells"] if c["best"].startswith("split")]
    out.print(
        f"a split is the best in {len(pays)} of {len(document['cells'])} cells; all at the edge in "
        f"{sum(c['best'] == EDGE for c in document['cells'])}. Held by: "
        f"{', '.join(document['cells'][0]['held_by'])}. Rules: {rules}",
        highlight=False,
    )


def misses(document: dict[str, Any]) -> list[str]:
    """A sentence for each cell in which the edge's own choice is far from the best way."""
    return [
        f"{cell['mbit']:g} Mbit/s, {cell['round_trip_ms']:g} ms: the edge's own choice takes "
        f"{cell['ratio']:.2f} times as long as {cell['best']}; what it chose, {cell['choice']:.2f}"
        for cell in document["cells"]
        if cell["ratio"] > WITHIN
    ] + [f"not measured: {text}" for text in document["failed"]]


PLAN = Benchmark("plan", measure, show, misses=misses)
