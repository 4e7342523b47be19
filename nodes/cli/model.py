"""`swarm model list|promote|status|pin|serve|samples|rollback`: the versions in a mesh, and which
one serves."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import swarm
from nodes.cli.acts import on_record
from nodes.cli.command import argument
from nodes.cli.options import AGENT, MODEL, VERSION, ModelName, SignedTarget, Target
from nodes.cli.upkept import upkept_document, upkept_lines
from nodes.cli.with_mesh import client_of
from nodes.console import conclude, out, print_json
from nodes.versions.upkeep import upkeep_by_operator
from swarm.errors import InvalidArgument, SwarmError
from swarm.model import unknown_model
from swarm.models.registry import InForce


async def list_(target: Target) -> None:
    """Show the models and versions in the mesh, and each version's share of traffic."""
    async with client_of(target) as client:
        rows: list[dict[str, Any]] = []
        for model, version in await client.registry.models():
            desired = await client.registry.desired(model) or {"serve": []}
            share = next(
                (e.get("share", 100) for e in desired["serve"] if e["version"] == version), 0
            )
            asks: list[str] = []
            with contextlib.suppress(SwarmError):  # what cannot be read is listed all the same
                asks = [*(await client.registry.info(model, version)).asks]
            row = {"model": model, "version": version, "share": share}
            rows.append(row | ({"asks": asks} if asks else {}))
        if target.json:
            print_json({"models": rows})
            return
        more = ["asks"] if any("asks" in row for row in rows) else []
        table = Table("model", "version", "share of traffic", *more)
        for row in rows:
            asked = [", ".join(row.get("asks", ()))] if more else []
            table.add_row(row["model"], row["version"], f"{row['share']} %", *asked)
        out.print(table if rows else f"no models in mesh {target.mesh!r}: swarm model push DIR")


async def promote(
    model: Annotated[str, MODEL, typer.Argument(help="NAME@VERSION.")],
    target: SignedTarget,
) -> None:
    """Let a version serve all traffic; nodes drain the old one afterwards."""
    async with client_of(target) as client:
        name, version = promoted_version(model)
        await promoted(client, name, version, target)


def promoted_version(model: str) -> tuple[str, str]:
    """Of NAME@VERSION. Raises `InvalidArgument` where the version is left out."""
    name, _, version = model.partition("@")
    if not version:
        raise InvalidArgument(f"{model!r}: say which version, as NAME@VERSION")
    return name, version


async def promoted(
    client: swarm.Mesh, name: str, version: str, target: SignedTarget, done: str = ""
) -> None:
    """Let a version serve all traffic, and say so. done: as of `Registry.promote`."""
    previous = await client.registry.promote(name, version, done)
    await on_record(client, "promote", name, version, previous=previous)
    doc = {"model": name, "version": version, "previous": previous}
    kept = await upkeep_by_operator(client, [name])
    conclude(
        target.json,
        doc | upkept_document(kept),
        f"{name}@{version} serves (was {previous})",
        *upkept_lines(kept),
    )


async def status(model: ModelName, target: Target) -> None:
    """Show what serves, and which agents keep to a version."""
    async with client_of(target) as client:
        name = model.partition("@")[0]
        doc = served_document(name, await client.registry.in_force(name))
        print_json(doc) if target.json else show_served(doc)


def served_document(model: str, present: InForce | None) -> dict[str, Any]:
    """What serves whom. Raises `NotFound` where nothing does."""
    if present is None:
        raise unknown_model(model)
    serve = {entry.version: entry.share for entry in present.state.serve}
    asked = {asker: list(versions) for asker, versions in present.state.asked.items()}
    return {"model": model, "serve": serve, "pins": dict(present.state.pins), "asked": asked}


def show_served(doc: dict[str, Any]) -> None:
    """As `served_document` made it."""
    shares = ", ".join(f"{version} ({share:g} %)" for version, share in doc["serve"].items())
    out.print(f"{doc['model']}: version {shares} serves")
    for agent, version in doc["pins"].items():
        out.print(f"agent {agent} keeps to version {version}", markup=False)
    for asker, versions in doc["asked"].items():
        out.print(f"{asker} asks version {', '.join(versions)}", markup=False)


async def pin(
    model: ModelName,
    agent: Annotated[str, AGENT, typer.Argument(help="The agent, as its requests name it.")],
    target: SignedTarget,
    version: Annotated[str, VERSION] = argument(
        "", "The version that it keeps to; left out, it is pinned no more."
    ),
) -> None:
    """Let an agent keep to one version, whatever the shares are."""
    async with client_of(target) as client:
        await client.registry.pin(model, agent, version)
        await on_record(client, "pin", model, version, pinned=agent)
        doc = {"model": model, "agent": agent, "version": version}
        upkept = await upkeep_by_operator(client, [model])
        kept = f"keeps to {model}@{version}" if version else "is pinned no more"
        conclude(
            target.json,
            doc | upkept_document(upkept),
            f"agent {agent} {kept}",
            *upkept_lines(upkept),
        )


async def serve(
    model: ModelName,
    state: Annotated[
        str,
        typer.Argument(
            help="The whole desired state, or a file of it: JSON with `serve` (versions and their "
            "shares), and with `sticky`, `policy`, `policy_options` if wanted."
        ),
    ],
    target: SignedTarget,
) -> None:
    """Put a desired state in force: shares of traffic for several versions, a routing policy."""
    async with client_of(target) as client:
        text = state if state.lstrip().startswith("{") else _read(state)
        try:
            doc = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"the desired state is no JSON: {error}") from None
        if not isinstance(doc, dict):
            raise InvalidArgument("the desired state is no JSON object")
        await client.registry.desire(model, doc)
        desired = await client.registry.desired(model)
        kept = await upkeep_by_operator(client, [model])
        lines = (f"{model}: {json.dumps(desired)} is in force", *upkept_lines(kept))
        conclude(target.json, desired, *lines)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"the desired state: {error}") from None


async def samples(
    model: ModelName,
    allowed: Annotated[str, typer.Argument(help="on or off.")],
    target: SignedTarget,
) -> None:
    """Allow, or forbid, to take inputs from a model's traffic to calibrate with; off at first."""
    async with client_of(target) as client:
        if allowed not in ("on", "off"):
            raise InvalidArgument(f"{allowed!r}: it is on or off")
        await client.registry.allow_samples(model, allowed == "on")
        await on_record(client, "samples", model, allowed=allowed)
        doc = {"model": model, "samples": allowed == "on"}
        conclude(target.json, doc, f"samples of {model}'s traffic: {allowed}")


async def rollback(
    model: Annotated[str, MODEL, typer.Argument(help="NAME.")], target: SignedTarget
) -> None:
    """Let the version before the present one serve all traffic again."""
    async with client_of(target) as client:
        version = await client.registry.rollback(model)
        await on_record(client, "rollback", model, version)
        doc = {"model": model, "version": version}
        kept = await upkeep_by_operator(client, [model])
        lines = (f"{model}@{version} serves again", *upkept_lines(kept))
        conclude(target.json, doc | upkept_document(kept), *lines)
