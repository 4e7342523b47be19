"""`swarm infer`: one request, or many with percentiles."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import swarm
from nodes.console import connect, duration, guarded, out, print_json
from nodes.console import delivery as delivery_of
from nodes.watch.profiling.bars import bar_lines
from nodes.watch.short_ids import short_ids
from shards.manifest import Manifest
from shards.runtimes.synthetic import random_feeds
from swarm.errors import InvalidArgument, PermissionDenied, Status, error_for
from swarm.tracing.anatomy import parts_of
from swarm.tracing.traceparent import make
from swarm.wire.codec_choice import AUTO
from swarm.wire.messages import Result
from swarm.wire.tensors import datatype_of


def read_inputs(path: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, by name. Raises `InvalidArgument`."""
    try:
        with np.load(Path(path), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, AttributeError) as error:
        raise InvalidArgument(
            f"{path} is no .npz file of arrays ({error}): write one with numpy.savez(path, "
            "input_name=array)"
        ) from None


async def random_inputs(client: swarm.Mesh, model: str) -> dict[str, np.ndarray]:
    """Random arrays that the model takes; free dimensions as they were when it was split.

    Raises `NotFound`, `Unavailable`, `PermissionDenied`."""
    try:
        info = await client.model(model)
        manifest = Manifest.from_json(await client.registry.manifest(info.model, info.version))
    except PermissionDenied as error:
        raise PermissionDenied(f"--random: {error}; give --input FILE.npz") from None
    return random_feeds(manifest.inputs, manifest.extra.get("examples"))


def run_infer(  # an argument for each of the command's options
    model: str,
    source: str,
    is_random: bool,
    output: str,
    repeat: int,
    concurrency: int,
    budget: str,
    nats: str,
    mesh: str,
    delivery: str,
    as_json: bool,
    weights: int = 0,
    codec: str = AUTO,
    explain: bool = False,
) -> int:
    """`swarm infer`; returns its exit code."""

    async def main() -> int:
        if is_random == bool(source):
            raise InvalidArgument("give one of --input FILE.npz and --random")
        inputs = {} if is_random else read_inputs(source)
        seconds, way = duration(budget), delivery_of(delivery)
        async with connect(nats, mesh, agent="swarm-infer", codec=codec) as client:
            inputs = inputs or await random_inputs(client, model)
            results = await ask_many(
                client, model, inputs, seconds, repeat, concurrency, way, weights, explain
            )
        answered = [r for r in results if r.status is Status.OK]
        if answered and output:
            np.savez(output, **answered[-1].outputs)  # type: ignore[arg-type]
        if as_json:
            print_json(summary(results, with_outputs=not output))
        elif answered:
            show(results, output, explain)
        failed = [r for r in results if r.status is not Status.OK]
        if failed and not as_json:
            where = f" (stage {failed[-1].stage}, {failed[-1].node})" if failed[-1].node else ""
            raise error_for(failed[-1].status, failed[-1].message + where)
        return 1 if failed else 0

    return guarded(main, as_json)


async def ask_many(
    client: swarm.Mesh,
    model: str,
    inputs: dict[str, np.ndarray],
    budget: float,
    repeat: int,
    concurrency: int,
    delivery: str,
    weights: int = 0,
    explain: bool = False,
) -> list[Result]:
    """Send `repeat` requests, `concurrency` at a time; failures are results too.

    budget: seconds for each request. explain: trace them."""
    results: list[Result] = []
    remaining = iter(range(repeat))

    async def ask() -> None:
        for _ in remaining:
            header = make() if explain else ""
            results.append(
                await client.ask(
                    model, inputs, budget, delivery=delivery, weights=weights, traceparent=header
                )
            )

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, repeat)):
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


def show(results: list[Result], output: str, explain: bool = False) -> None:
    """Print the outputs, and where the time went."""
    last = next(r for r in reversed(results) if r.status is Status.OK)
    for name, array in last.outputs.items():
        text = np.array2string(array, precision=5, threshold=40, edgeitems=4)
        out.print(f"{name} {datatype_of(array)} {list(array.shape)}", markup=False)
        if not output:
            out.print(text, markup=False)
    if explain:
        label = short_ids([hop.node for hop in last.hops])
        for line in bar_lines(parts_of(last.latency, last.hops), label):
            out.print(line, markup=False, highlight=False)
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
        f"p99 {doc['p99_ms']} ms" + (", degraded" if last.degraded else "")
    )
