"""`swarm model slo`: show a model's objective, or give it one."""

from __future__ import annotations

import re
from typing import Annotated

import typer

import swarm
from nodes.cli.acts import on_record
from nodes.cli.command import option
from nodes.cli.options import ModelName, SignedTarget
from nodes.cli.with_mesh import client_of
from nodes.console import duration, out, print_json
from swarm.errors import InvalidArgument
from swarm.flow.objective import Objective, parse_objective
from swarm.model import unknown_model

P99 = Annotated[str, typer.Option(help="The model's objective: 99 % of answers come within: 20ms.")]
Errors = Annotated[
    str, typer.Option(help="The model's objective: no larger share of requests fails: 0.1%.")
]


def objective_of(p99: str = "", errors: str = "") -> Objective | None:
    """An objective as options say it: `20ms`, `0.1%`; either may be empty, and None where both are.
    Raises `InvalidArgument`."""
    document: dict[str, float] = {}
    if p99:
        document["p99_ms"] = duration(p99) * 1e3
    if errors:
        document["errors"] = share(errors)
    return parse_objective(document) if document else None


def share(text: str) -> float:
    """A share of `0.1%` or `0.001`. Raises `InvalidArgument`."""
    match = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(%?)", text.strip())
    if match is None:
        raise InvalidArgument(f"{text!r} is no share: write 0.1% or 0.001")
    return float(match[1]) / (100 if match[2] else 1)


async def set_objective(client: swarm.Mesh, model: str, objective: Objective | None) -> None:
    """Put an objective in force, or take it away, and record it. Raises `NotFound`."""
    await client.registry.set_objective(model, objective)
    await on_record(client, "slo", model, slo="none" if objective is None else str(objective))


async def slo(
    model: ModelName,
    target: SignedTarget,
    p99: P99 = "",
    errors: Errors = "",
    none: bool = option(False, "Take the objective away."),
) -> None:
    """Show or set a model's objective. Nodes that answer requests measure it, and tell."""
    # Whoever only looks needs no key.
    async with client_of(target, signs=bool(p99 or errors or none)) as client:
        wanted = objective_of(p99, errors)
        if none and wanted is not None:
            raise InvalidArgument("--none takes the objective away: leave out --p99 and --errors")
        if none or wanted is not None:
            await set_objective(client, model, wanted)
        desired = await client.registry.desired(model)
        if desired is None:
            raise unknown_model(model)
        slo = desired.get("slo")
        if target.json:
            print_json({"model": model, "slo": slo})
        elif slo is None:
            out.print(f"{model} has no objective: swarm model slo {model} --p99 20ms --errors 0.1%")
        else:
            out.print(f"{model}: {parse_objective(slo)}; `swarm status` shows how it burns")
