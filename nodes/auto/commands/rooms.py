"""`swarm model rooms|priority`: what the devices have room for, which models take it, and which of
them give way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from nodes.auto.commands.planning_mesh import statuses
from nodes.cli.acts import on_record
from nodes.cli.options import ModelName, SignedTarget, Target
from nodes.cli.with_mesh import client_of
from nodes.console import conclude, out, print_json
from swarm.auto.auto_nodes import ROLE


async def rooms(target: Target) -> None:
    """Show what each device has room for, and which models take it, on nodes of role auto."""
    async with client_of(target, signs=False) as client:
        found = memories_of(await statuses(client))
    if target.json:
        print_json({"memories": found})
        return
    if not found:
        out.print("no node of role auto tells its room: swarm-node --role auto --model NAME")
        return
    table = Table("memory", "MB", "model", "priority", "stages", "takes MB", "state")
    for memory in found:
        title = memory["memory"], f"{memory['bytes'] / 1e6:.0f}"
        for row in memory["models"]:
            stages = "-".join(map(str, row["slot"])) if row["slot"] else ""
            size, state = f"{row['bytes'] / 1e6:.0f}", row["lacking"] or row["state"]
            name, priority = f"{row['model']}@{row['version']}", str(row["priority"])
            table.add_row(*title, name, priority, stages, size, state)
            title = "", ""
        table.add_row("", "", "", "", "", f"{memory['left'] / 1e6:.0f}", "is left")
    out.print(table)


def memories_of(documents: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The memories of a fleet, each once, with what versions take of them. documents: status
    documents of living nodes."""
    found: dict[str, dict[str, Any]] = {}
    for doc in documents:
        if doc.get("role") != ROLE:
            continue
        for name, size in doc.get("pools", {}).items():
            memory = found.setdefault(name, {"memory": name, "bytes": size, "models": []})
            memory["bytes"] = min(memory["bytes"], size)
            memory["models"] += [_row(doc, plan) for plan in doc.get("plans", ())]
    for memory in found.values():
        memory["models"].sort(key=lambda row: (-row["priority"], row["model"], row["version"]))
        memory["left"] = memory["bytes"] - sum(row["bytes"] for row in memory["models"])
    return sorted(found.values(), key=lambda memory: str(memory["memory"]))


def _row(doc: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, Any]:
    slot, held = plan.get("slot"), plan.get("held_bytes", 0)
    return {
        "node": doc["node"],
        "model": plan["model"],
        "version": plan["version"],
        "priority": plan.get("priority", 0),
        "bytes": held,
        "slot": slot,
        "state": "serves" if slot and held else "waits for room" if slot else "no slot",
        "lacking": plan.get("lacking", ""),
    }


async def priority(
    model: ModelName,
    number: Annotated[
        int,
        typer.Argument(help="Of models that have no room beside each other, lower ones give way."),
    ],
    target: SignedTarget,
) -> None:
    """Say which models keep their place where devices have no room for all; 0 at first."""
    async with client_of(target) as client:
        name = model.partition("@")[0]
        await client.registry.set_priority(name, number)
        await on_record(client, "priority", name, priority=number)
    conclude(target.json, {"model": name, "priority": number}, f"{name}: priority {number}")
