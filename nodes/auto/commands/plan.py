"""`swarm model plan`: which stages lie together on nodes of role auto, now or ahead; freeze it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from nodes.acts import person
from nodes.auto.commands.planning import PlanOptions, run_plan_ahead
from nodes.auto.commands.planning_mesh import run_plan_for_mesh
from nodes.cli.acts import on_record
from nodes.cli.command import seldom
from nodes.cli.options import Target
from nodes.cli.with_mesh import client_of, named_version
from nodes.console import out, print_json
from swarm.auto.document import PlanInForce
from swarm.auto.plan_store import PlanStore
from swarm.errors import NotFound

Planned = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="NAME or NAME@VERSION in the mesh; with --devices an ONNX file, a split folder; with "
        "--devices mesh any of them.",
    ),
]


async def plan(
    model: Planned,
    options: PlanOptions,
    target: Target,
    freeze: bool | None = seldom(
        None, "Keep to the plan, whoever comes; or plan again.", "--freeze/--unfreeze"
    ),
) -> None:
    """Which layers run where: as nodes of role auto have it in force, or ahead, with --devices."""
    if options.devices == "mesh":
        await run_plan_for_mesh(model, options, target)
    elif options.devices:
        await run_plan_ahead(model, options, target.json)
    else:
        await _in_force(model, freeze, target)


async def _in_force(model: str, freeze: bool | None, target: Target) -> None:
    """freeze: None only shows."""
    async with client_of(target) as client:
        name, version = await named_version(client, model)
        store = PlanStore(client.link, client.subjects)
        if freeze is not None:
            plan = await store.freeze(name, version, freeze, person() or "operator")
            act = "plan-freeze" if freeze else "plan-unfreeze"
            await on_record(client, act, name, version, number=plan.number)
        else:
            stored = await store.read(name, version)
            if stored.plan is None:
                why = (
                    stored.refused or "nodes of role auto make one, some seconds after their start"
                )
                raise NotFound(f"{name}@{version} has no plan in force: {why}")
            plan = stored.plan
        if target.json:
            print_json(plan.document())
        else:
            _show(plan)


def _show(plan: PlanInForce) -> None:
    state = "frozen" if plan.frozen else "nodes propose another one where that pays"
    title = f"{plan.model}@{plan.version}: plan {plan.number}, {plan.at}, {state}"
    out.print(title, markup=False, highlight=False, soft_wrap=True)
    out.print(f"by {plan.proposer}: {plan.reason}", markup=False, highlight=False, soft_wrap=True)
    table = Table()
    for name in ("slot", "stages", "computed for", "expected ms", "MB", "nodes"):
        table.add_column(name, justify="left" if name == "computed for" else "right")
    for number, slot in enumerate(plan.slots, 1):
        table.add_row(
            str(number),
            f"{slot.first}-{slot.last}",
            slot.node,
            f"{slot.compute_us / 1e3:.2f}",
            f"{slot.need / 1e6:.0f}",
            str(slot.replicas),
        )
    out.print(table)
    out.print("who serves which stages now: swarm status", markup=False)
