"""`swarm model gc`: remove the versions that nobody needs from the server."""

from __future__ import annotations

from typing import Any

import swarm
from nodes.cli.acts import on_record
from nodes.cli.command import option
from nodes.cli.options import SignedTarget
from nodes.cli.with_mesh import client_of
from nodes.console import err, out, print_json
from swarm.errors import InvalidArgument
from swarm.fleet.service import FleetWatch
from swarm.models.artifacts import CHUNK
from swarm.models.garbage import Collector, Garbage


async def gc(
    target: SignedTarget,
    keep: int = option(2, "So many of the last versions of each model stay in any case."),
    dry_run: bool = option(False, "Say what would go, and remove nothing."),
) -> None:
    """Remove versions from the server that nothing serves, rolls out, pins or goes back to."""
    async with client_of(target) as client:
        if keep < 1:
            raise InvalidArgument(f"--keep {keep}: at least the last version of a model stays")
        collector = Collector(client.link, client.subjects, client.registry)
        garbage = await collector.find(await _in_use(client), keep)
        if not dry_run:
            garbage = await collector.sweep(garbage)
            for (model, version), size in garbage.versions.items():
                await on_record(client, "gc", model, version, bytes=size)
        _show(garbage, dry_run, target.json)


async def _in_use(client: swarm.Mesh) -> set[tuple[str, str]]:
    """The models and versions that living nodes serve, or wait for."""
    found: set[tuple[str, str]] = set()
    async with FleetWatch(client.link, client.subjects, events=0) as watch:
        await watch.hear_all()
        for node in watch.view.nodes.values():
            status = node.status
            model = str(status.get("model", ""))
            found.add((model, str(status.get("version", ""))))
            for stage in node.stages:
                found.add((str(stage.get("model", model)), str(stage.get("version", ""))))
    return found


def _show(garbage: Garbage, dry_run: bool, as_json: bool) -> None:
    total = sum(garbage.versions.values()) + sum(garbage.orphans.values())
    doc: dict[str, Any] = {
        "dry_run": dry_run,
        "versions": [
            {"model": model, "version": version, "bytes": size}
            for (model, version), size in garbage.versions.items()
        ],
        "left": garbage.orphans,
        "lost_chunks": garbage.lost_chunks,
        "bytes": total,
        "kept": garbage.kept,
    }
    if as_json:
        print_json(doc)
        return
    for model, why in garbage.kept.items():
        err.print(f"all of {model} is kept: {why}", markup=False, soft_wrap=True)
    word = "would be removed" if dry_run else "removed"
    for (model, version), size in garbage.versions.items():
        out.print(f"{word}: {model}@{version}, {size / 1e6:.2f} MB", markup=False)
    for name, size in garbage.orphans.items():
        out.print(f"{word}: {name} of no version, {size / 1e6:.2f} MB", markup=False)
    if garbage.lost_chunks:
        most = sum(garbage.lost_chunks.values()) * CHUNK / 1e6
        pushes = len(garbage.lost_chunks)
        text = f"{word}: chunks of {pushes} pushes that broke off, {most:.2f} MB at most"
        out.print(text, markup=False)
    if not (garbage.versions or garbage.orphans or garbage.lost_chunks):
        out.print("nothing to remove")
