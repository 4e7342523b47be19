"""`swarm profile`: where live traffic's milliseconds go, stage by stage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
from rich.box import SIMPLE
from rich.table import Table

import swarm
from nodes.cli.arrays import random_inputs, read_inputs
from nodes.cli.command import argument, option, seldom
from nodes.cli.options import MODEL, SOLE_MODEL, Input, Target
from nodes.cli.with_mesh import asked_model, client_of
from nodes.console import out, print_json
from nodes.watch.profiling.spent import OUTSIDE, Profile, Spread, advise, profile_of
from swarm.errors import InvalidArgument, Status
from swarm.fleet.service import FleetWatch
from swarm.tracing.anatomy import KINDS, Kind, TimePart, parts_of
from swarm.tracing.traceparent import make

COLOURS: dict[Kind, str] = {
    "outside": "#9ca3af",
    "onward": "#60a5fa",
    "lane": "#fbbf24",
    "queue": "#f97316",
    "batch wait": "#a78bfa",
    "compute": "#16a34a",
}


def figure(stages: Sequence[tuple[str, dict[Kind, float]]], title: str, path: str) -> None:
    """Write a figure (.png or .svg) of stages and milliseconds of their parts, stacked.

    Raises `ImportError` without matplotlib, and `OSError` where the file cannot be written.
    """
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(8, 0.9 + 0.5 * len(stages)), layout="constrained")
    axes = drawn.add_subplot()
    names = [name for name, _ in stages]
    left = [0.0] * len(stages)
    for kind in KINDS:
        lengths = [parts.get(kind, 0.0) for _, parts in stages]
        if any(lengths):
            axes.barh(names, lengths, left=left, color=COLOURS[kind], label=kind)
            left = [a + b for a, b in zip(left, lengths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds")
    axes.set_title(title)
    axes.legend(loc="best", frameon=False)
    drawn.savefig(path, dpi=150)


SETTLE = 1.3  # seconds in which every node that is asked for its status has said it
BUDGET = 5.0  # seconds for a probe


@dataclass(frozen=True)
class ProfileOptions:
    """Of `swarm profile`."""

    seconds: float = option(30.0, "How long to look, in seconds.", min=1)
    probes: float = seldom(
        2.0,
        "Traced requests a second of this command's own, beside live traffic; 0: none.",
        min=0,
        max=100,
    )
    input: Input = ""
    plot: str = option("", "Write a figure to this .png or .svg.")


async def profile(
    options: ProfileOptions,
    target: Target,
    model: Annotated[str, MODEL] = argument("", SOLE_MODEL, metavar="[MODEL]"),
) -> int:
    """Where a model's milliseconds go under live traffic, stage by stage, and what to do next.

    It sends requests of its own too, of random values or of --input. Exits with 1 where nothing
    could be seen."""
    inputs = read_inputs(options.input) if options.input else {}
    plot = options.plot
    if plot and not plot.endswith((".png", ".svg")):
        raise InvalidArgument(f"--plot {plot}: a file .png or .svg")
    async with client_of(target) as client:
        model = await asked_model(client, model, "swarm profile")
        asked = inputs
        if options.probes > 0 and not asked:
            asked = await random_inputs(client, model)
        async with FleetWatch(client.link, client.subjects, events=0) as watch:
            before = await _statuses(watch)
            began = time.monotonic()
            probed = await _probe(client, model, asked, options.seconds, options.probes)
            after = await _statuses(watch)
            spent = time.monotonic() - began
        found = profile_of(model, spent, before, after, probed)
        if plot:
            _plot(found, plot)
        if target.json:
            print_json(asdict(found) | {"advice": advise(found)})
        else:
            show(found)
        return 0 if found.stages else 1


async def _statuses(watch: FleetWatch) -> dict[str, dict[str, Any]]:
    """The status documents of all nodes, not older than `SETTLE`."""
    watch.request_statuses()
    await asyncio.sleep(SETTLE)
    return {node.node: dict(node.status) for node in watch.view.nodes.values() if node.status}


async def _probe(
    client: swarm.Mesh, model: str, inputs: dict[str, np.ndarray], seconds: float, rate: float
) -> list[tuple[float, list[TimePart]]]:
    """Ask traced requests at `rate` a second, one at a time; those that were answered."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    found: list[tuple[float, list[TimePart]]] = []
    if rate <= 0:
        await asyncio.sleep(seconds)
        return found
    due = loop.time()
    while due < end:
        result = await client.ask(model, inputs, BUDGET, traceparent=make())
        if result.status is Status.OK:
            found.append((result.latency, parts_of(result.latency, result.hops)))
        due = max(due + 1.0 / rate, loop.time())
        await asyncio.sleep(max(0.0, min(due, end) - loop.time()))
    return found


def show(profile: Profile) -> None:
    """Print the stages, the slowest one, and what to do."""
    live = Table("stage", "nodes", "req/s", "busy", "batch", "queue ms", "compute ms", box=SIMPLE)
    for stage in profile.stages:
        if stage.nodes:
            live.add_row(
                str(stage.stage),
                str(stage.nodes),
                f"{stage.rate:.1f}",
                f"{stage.busy:.0%}",
                f"{stage.batch:.1f}",
                _cell(stage.live_queue),
                _cell(stage.live_compute),
            )
    out.print(live)
    kinds = [kind for kind in KINDS if any(kind in stage.parts for stage in profile.stages)]
    if kinds:
        probes = Table("probes, ms", *kinds, box=SIMPLE)
        for stage in profile.stages:
            probes.add_row(
                "outside" if stage.stage == OUTSIDE and not stage.nodes else str(stage.stage),
                *(_median(stage.parts.get(kind)) for kind in kinds),
            )
        out.print(probes)
    out.print(
        f"{profile.model}, {profile.seconds:.0f} s, {profile.probes} probes"
        + (f", latency {_cell(profile.latency)} ms" if profile.latency else "")
        + "; milliseconds: p50 / p99 of live traffic, p50 of the probes' parts",
        markup=False,
    )
    if (slowest := profile.slowest) is not None:
        out.print(f"slowest: stage {slowest.stage}", markup=False)
    for line in advise(profile):
        out.print(f"→ {line}", markup=False, soft_wrap=True)


def _cell(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.p50:.2f} / {spread.p99:.2f}"


def _median(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.p50:.2f}"


def _plot(profile: Profile, path: str) -> None:
    stages: Sequence[tuple[str, dict[Any, float]]] = [
        (
            "outside" if stage.stage == OUTSIDE else f"stage {stage.stage}",
            {kind: spread.p50 for kind, spread in stage.parts.items()},
        )
        for stage in profile.stages
    ]
    try:
        figure(stages, f"{profile.model}: medians of {profile.probes} probes", path)
    except ImportError as error:
        raise InvalidArgument(
            f"--plot needs matplotlib ({error}): pip install 'swarm-mesh[bench]'"
        ) from None
