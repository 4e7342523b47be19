"""`swarm bench …`: the commands. What a command needs is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nodes.bench.sizes import HOP_SIZES, parse_sizes

Json = Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")]
Chart = Annotated[str, typer.Option(help="Draw the result into this image (needs matplotlib).")]
Output = Annotated[str, typer.Option("-o", "--output", help="Write the JSON document here.")]
Rounds = Annotated[int, typer.Option(min=1, max=100, help="Interleaved rounds.")]
Delivery = Annotated[str, typer.Option(help="durable (lanes) or core (nothing is stored).")]


def hop(
    sizes: Annotated[str, typer.Option(help="Bytes of features, separated by commas.")] = HOP_SIZES,
    requests: Annotated[int, typer.Option(min=1, help="In one slice of one contender.")] = 150,
    rounds: Rounds = 5,
    delivery: Delivery = "durable",
    json_: Json = False,
    chart: Chart = "",
    output: Output = "",
) -> None:
    """What the mesh adds per hop, beside raw NATS chains measured in the same run."""
    from nodes.bench.hop import run_hop

    if delivery not in ("durable", "core"):
        raise typer.BadParameter(f"{delivery!r}: it is durable or core", param_hint="--delivery")
    raise typer.Exit(run_hop(_sizes(sizes), requests, rounds, delivery, json_, chart, output))


def _sizes(text: str) -> list[int]:
    try:
        return parse_sizes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--sizes") from None


def _numbers(text: str, hint: str) -> list[int]:
    """Positive integers, separated by commas."""
    try:
        values = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        values = []
    if not values or min(values) < 1:
        raise typer.BadParameter(f"{text!r}: numbers from 1, with commas", param_hint=hint)
    return values


def register(app: typer.Typer) -> None:
    """Add all benchmark commands to `swarm bench`."""
    for command in (hop,):
        app.command()(command)
