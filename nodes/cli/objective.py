"""`swarm model slo`: show a model's objective, or give it one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

import swarm
from nodes.cli.acts import on_record
from nodes.cli.signing import operator
from nodes.console import duration, out, print_json, with_mesh
from swarm.errors import InvalidArgument
from swarm.flow.objective import Objective, parse_objective
from swarm.model import unknown_model


@dataclass(frozen=True, slots=True)
class Wanted:
    """An objective as flags say it: `20ms`, `0.1%`; either may be empty."""

    p99: str = ""
    errors: str = ""

    def objective(self) -> Objective | None:
        """None where both are empty. Raises `InvalidArgument`."""
        document: dict[str, float] = {}
        if self.p99:
            document["p99_ms"] = duration(self.p99) * 1e3
        if self.errors:
            document["errors"] = share(self.errors)
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


def run_slo(
    model: str,
    p99: str,
    errors: str,
    none: bool,
    sign_with: str,
    nats: str,
    mesh: str,
    as_json: bool,
) -> int:
    """`swarm model slo`; returns its exit code."""

    async def work(client: swarm.Mesh) -> int:
        wanted = Wanted(p99, errors).objective()
        if none and wanted is not None:
            raise InvalidArgument("--none takes the objective away: leave out --p99 and --errors")
        if none or wanted is not None:
            await set_objective(client, model, wanted)
        desired = await client.registry.desired(model)
        if desired is None:
            raise unknown_model(model)
        slo = desired.get("slo")
        if as_json:
            print_json({"model": model, "slo": slo})
        elif slo is None:
            out.print(f"{model} has no objective: swarm model slo {model} --p99 20ms --errors 0.1%")
        else:
            out.print(f"{model}: {parse_objective(slo)}; `swarm status` shows how it burns")
        return 0

    # Whoever only looks needs no key.
    change = bool(p99 or errors or none)
    return with_mesh(nats, mesh, as_json, work, partial(operator, sign_with) if change else dict)
