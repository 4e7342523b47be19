"""`swarm infer`: one request, or many with percentiles."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from rich.table import Table

import swarm
from nodes.cli.arrays import random_inputs, read_inputs
from nodes.cli.bars import bar_lines, inside_lines, nodes_of
from nodes.cli.command import argument, option, seldom
from nodes.cli.options import MODEL, SOLE_MODEL, Target
from nodes.cli.short_ids import short_ids
from nodes.cli.with_mesh import asked_model, connect
from nodes.console import delivery, duration, out, print_json
from nodes.features import first
from nodes.meaning import AnswerMeaning
from swarm.addresses import without_credentials
from swarm.errors import InvalidArgument, Status, error_for
from swarm.fleet.status_listener import CURRENT_AFTER
from swarm.tracing.anatomy import parts_of
from swarm.tracing.traceparent import make
from swarm.wire.messages import Result
from swarm.wire.tensors import datatype_of
from swarm.wire.unfamiliar import told_of
from swarm.wire.urgency import checked_priority

NOBODY_ANSWERED = {Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED}


@dataclass(frozen=True)
class InferOptions:
    """Of `swarm infer`."""

    input: str = option(
        "",
        "An .npz file with one array for each model input; or a picture, JPEG, PNG, BMP, WebP, "
        "GIF, TIFF or AVIF, where the model has a task.",
    )
    random: bool = option(False, "Send random values of the right shapes instead.")
    output: str = option("", "Write the last answer's arrays to this .npz.", "-o", "--output")
    repeat: int = option(1, "Requests to send; prints percentiles over all of them.", min=1)
    concurrency: int = option(1, "Requests in flight at a time.", min=1, max=4096)
    budget: str = option("5s", "Time after which a request fails: 50ms, 2s, 1m.")
    delivery: str = option(
        "durable",
        "durable: a stage that dies loses no request. fast: sooner, but a lost request is asked "
        "again by this client only.",
    )
    priority: str = option(
        "", "low, normal or high: a high one passes others that wait. Empty: normal."
    )
    weights: int = seldom(0, "The least weight version of the answer; 0 for any.", min=0)
    allow_degraded: bool | None = seldom(
        None,
        "Whether the answer may be that of the model's lighter model, where it names one and "
        "cannot answer in time. Left out: as the model's owner says.",
        "--allow-degraded/--no-allow-degraded",
    )
    explain: bool = option(False, "Show the last answer's time as a bar for each hop.")
    codec: str = seldom(
        "auto",
        "How the inputs go by the server, and the outputs come: auto, none, f16, i8, i6 or i4; "
        "what loses something only where the model's owner allows it.",
    )


async def infer(
    options: InferOptions,
    target: Target,
    model: Annotated[str, MODEL] = argument("", SOLE_MODEL, metavar="[MODEL]"),
) -> int:
    """Ask the mesh for one inference, and show where its time went."""
    if options.random == bool(options.input):
        raise InvalidArgument("give one of --input FILE.npz, --input PICTURE and --random")
    opens = first(lambda feature: feature.opens(options.input))
    inputs = {} if options.random or opens else read_inputs(options.input)
    duration(options.budget)  # a wrong option is told before anything is asked
    delivery(options.delivery)
    checked_priority(options.priority)
    async with connect(target, agent="swarm-infer", codec=options.codec) as client:
        model = await asked_model(client, model, "swarm infer")
        opened = await opens(client, model) if opens else None
        inputs = opened.inputs if opened else inputs or await random_inputs(client, model)
        results = await ask_many(client, model, inputs, options)
        if lost := [r for r in results if r.status in NOBODY_ANSWERED]:
            await say_who_lacks(client, lost[-1], target)
        said: AnswerMeaning | None = None
        if opened and (good := [r for r in results if r.status is Status.OK]):
            said = await opened.read(client, good[-1])
    answered = [r for r in results if r.status is Status.OK]
    if answered and options.output:
        np.savez(options.output, **answered[-1].outputs)  # type: ignore[arg-type]
    if target.json:
        doc = summary(results, with_outputs=not options.output and said is None)
        print_json(doc | ({} if said is None else said.document()))
    elif answered:
        show(results, options, said)
    failed = [r for r in results if r.status is not Status.OK]
    if failed and not target.json:
        if options.explain and not answered:
            explain_inside(failed[-1])
        where = f" (stage {failed[-1].stage}, {failed[-1].node})" if failed[-1].node else ""
        raise error_for(failed[-1].status, failed[-1].message + where)
    return 1 if failed else 0


async def say_who_lacks(client: swarm.Mesh, result: Result, target: Target) -> None:
    """Where a stage has no node, a failed result says so, and the line that starts one. Waits until
    the nodes that are there have told of themselves."""
    client.statuses.wanted()
    await asyncio.sleep(CURRENT_AFTER)
    if not (client.statuses.current and result.version):
        return  # nothing is known of nodes here
    info = await client.model(f"{result.model}@{result.version}")
    lacks = [
        stage.stage
        for stage in info.stages
        if not client.statuses.serving(info.model, info.version, stage.stage)
    ]
    if lacks:
        where = f"--nats {','.join(map(without_credentials, target.nats.split(',')))}"
        where += f" --mesh {target.mesh}" if target.mesh != "default" else ""
        _, found, of_lighter = result.message.partition("; its lighter model")
        result.status = Status.UNAVAILABLE
        result.message = (
            f"no node serves stage {', '.join(map(str, lacks))} of {info.model}@{info.version}: "
            f"start one for each, `swarm-node --role shard-{lacks[0]} --model {info.model} {where}`"
            f"{found}{of_lighter}"
        )


async def ask_many(
    client: swarm.Mesh, model: str, inputs: dict[str, np.ndarray], options: InferOptions
) -> list[Result]:
    """Send `repeat` requests, `concurrency` at a time; failures are results too. With `explain`
    they are traced. Raises `InvalidArgument` for a wrong budget or delivery."""
    results: list[Result] = []
    remaining = iter(range(options.repeat))
    budget, way = duration(options.budget), delivery(options.delivery)

    async def ask() -> None:
        for _ in remaining:
            results.append(
                await client.ask(
                    model,
                    inputs,
                    budget,
                    delivery=way,
                    weights=options.weights,
                    priority=options.priority,
                    traceparent=make() if options.explain else "",
                    allow_degraded=options.allow_degraded,
                )
            )

    async with asyncio.TaskGroup() as group:
        for _ in range(min(options.concurrency, options.repeat)):
            group.create_task(ask())
    return results


def summary(results: list[Result], with_outputs: bool) -> dict[str, Any]:
    """The document of `--json`: the last result, and percentiles over all, milliseconds."""
    last = results[-1]
    latencies = np.array([r.latency for r in results]) * 1e3
    doc: dict[str, Any] = {
        "id": last.id,
        "model": last.model,
        "version": last.version,
        "status": str(last.status),
        "degraded": last.degraded,
        "weights": last.weights,
        "latency_ms": round(last.latency * 1e3, 3),
        "hops": [hop.as_json() for hop in last.hops],
        "codec": last.codec or "raw",
        "requests": len(results),
        "answered": sum(r.status is Status.OK for r in results),
        "p50_ms": round(float(np.percentile(latencies, 50)), 3),
        "p99_ms": round(float(np.percentile(latencies, 99)), 3),
    }
    if last.degraded:
        doc["message"] = last.message
    if last.unfamiliarity:
        doc |= told_of(last.unfamiliarity, last.unfamiliar_rows)
    if last.way:
        doc |= {"way": last.way, "why": last.why}
    if last.cached_ms is not None:
        doc |= {"cached": True, "age_ms": last.cached_ms}
    if last.status is not Status.OK:
        doc["error"] = last.message
    elif with_outputs:
        doc["outputs"] = [
            {
                "name": name,
                "datatype": datatype_of(array),
                "shape": list(array.shape),
                "data": array.reshape(-1).tolist(),
            }
            for name, array in last.outputs.items()
        ]
    return doc


def explain_inside(result: Result) -> None:
    """The work inside the runs of its stages, also of one that failed."""
    label = short_ids(nodes_of(result.hops))
    for line in [line for hop in result.hops for line in inside_lines(hop, label)]:
        out.print(line, markup=False, highlight=False)


def show(results: list[Result], options: InferOptions, said: AnswerMeaning | None = None) -> None:
    """Print the outputs, or what they say, and where the time went."""
    last = next(r for r in reversed(results) if r.status is Status.OK)
    for line in said.lines() if said else ():
        out.print(line, markup=False, highlight=False)
    for name, array in () if said else last.outputs.items():
        text = np.array2string(array, precision=5, threshold=40, edgeitems=4)
        out.print(f"{name} {datatype_of(array)} {list(array.shape)}", markup=False)
        if not options.output:
            out.print(text, markup=False)
    if last.unfamiliarity > 1:
        times = f"{last.unfamiliarity:g} times as far from its calibration data as is usual at most"
        rows = f", row {last.unfamiliar_rows}" if last.unfamiliar_rows else ""
        out.print(f"unfamiliar to the model: {times}{rows}", markup=False, highlight=False)
    for part, why in last.left_out.items():
        out.print(f"left out: {part}: {why}", markup=False, highlight=False)
    if last.way:
        out.print(f"way: {last.way} ({last.why})", markup=False, highlight=False)
    if options.explain:
        for line in bar_lines(parts_of(last.latency, last.hops), short_ids(nodes_of(last.hops))):
            out.print(line, markup=False, highlight=False)
        explain_inside(last)
        return
    table = Table("stage", "node", "queue ms", "compute ms", "batch", "weights", "came as")
    for hop in last.hops:
        table.add_row(
            str(hop.stage),
            hop.node,
            f"{hop.queue_us / 1e3:.2f}",
            f"{hop.compute_us / 1e3:.2f}",
            str(hop.batch),
            str(hop.weights) if hop.weights else "base",
            hop.codec or "raw",
        )
    out.print(table)
    doc = summary(results, with_outputs=False)
    if last.codec:
        out.print(f"the outputs came as {last.codec}")
    out.print(
        f"{doc['answered']} of {doc['requests']} answered, latency p50 {doc['p50_ms']} ms, "
        f"p99 {doc['p99_ms']} ms"
        + (", degraded" if last.degraded else "")
        + ("" if last.cached_ms is None else f", kept for {last.cached_ms / 1e3:.1f} s")
    )
    if last.degraded:
        text = f"{last.model}@{last.version} answered; {last.message}"
        out.print(text, markup=False, highlight=False, soft_wrap=True)
