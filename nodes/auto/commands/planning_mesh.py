"""`swarm model plan MODEL --devices mesh`: where a model's layers should run, on the nodes of the
mesh as they are now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import Any

import swarm
from nodes.auto.commands.planning import (
    Measured,
    PlanOptions,
    conclude_plan,
    document_of,
    measured_of,
    objective_of,
    of_manifest,
)
from nodes.auto.planning import facts_of
from nodes.auto.searching import codecs_of
from nodes.auto.told import (
    FAR,
    REQUESTER,
    MeshDevices,
    ToldNode,
    Version,
    auto_nodes_told,
    by_hand,
    mesh_devices,
)
from nodes.cli.options import Target
from nodes.cli.with_mesh import client_of, named_version
from shards.auto.plan import make_plan
from shards.auto.problem import Codec, Device, PlanningProblem, Segment
from shards.errors import PlanError
from shards.manifest import Manifest, read_dir
from shards.runtimes.memory import need_of
from swarm.auto.links import NEAR
from swarm.errors import InvalidArgument, NotFound
from swarm.fleet.service import FleetWatch
from swarm.model import ModelInfo
from swarm.wire.codec_choice import AUTO, candidates
from swarm.wire.tensors import known_codecs


async def run_plan_for_mesh(model: str, options: PlanOptions, target: Target) -> None:
    """`swarm model plan --devices mesh`. Raises `PlanError` where no plan can run."""
    is_file, is_folder = _is_file_or_folder(model)
    async with client_of(target) as client:
        objective = objective_of(options.objective)
        version: Version | None = None
        if is_file:
            measured = await asyncio.to_thread(measured_of, model, target.json, options)
            codecs = codecs_of(candidates(AUTO, (), known_codecs()))
        else:
            manifest = await (_of_folder if is_folder else _of_name)(client, model)
            measured, codecs = _stages_of(manifest)
            version = manifest.model, manifest.version
        documents = await statuses(client)
        nodes = auto_nodes_told(documents)
        if own := [told for told in nodes if told.model == measured.name]:
            nodes = own
        elif nodes and not (is_file or is_folder):
            raise PlanError(f"no node of role auto serves {measured.name}: start some with --model")
        hand = [] if version is None else by_hand(documents, version)
        usual = await _usual(client, nodes)
        found = mesh_devices(measured.segments, nodes, usual, version, hand)
        problem = PlanningProblem(
            measured.segments,
            found.devices,
            objective,
            found.links,
            codecs=codecs,
            most_error=options.most_error,
            source=REQUESTER,
            input_bytes=measured.input_bytes,
            latency_ms=options.latency_ms or float("inf"),
            rate=options.rate,
        )
        plan = await asyncio.to_thread(make_plan, problem)
        if plan.prediction.latency_ms >= FAR:
            raise PlanError("no other node is left for the stages beside those named by hand")
        others = tuple(o for o in plan.others if o.prediction and o.prediction.latency_ms < FAR)
        document = document_of(measured, problem, replace(plan, others=others))
        conclude_plan(document | {"devices": _told(found, nodes)}, model, options, target.json)


async def statuses(client: swarm.Mesh) -> list[Mapping[str, Any]]:
    """The status documents of all living nodes."""
    async with FleetWatch(client.link, client.subjects, events=0) as watch:
        await watch.hear_all()
        living = watch.view.living(time.monotonic())
        return [node.status for node in living if node.status]


def _is_file_or_folder(model: str) -> tuple[bool, bool]:
    """Neither for a name. Raises `InvalidArgument` for what can only be a path, and is none."""
    path = Path(model)
    found = path.is_file(), path.is_dir()
    if not any(found) and (path.suffix or len(path.parts) > 1):
        raise InvalidArgument(f"{model}: no such file, and no name of a model")
    return found


async def _of_name(client: swarm.Mesh, model: str) -> Manifest:
    """Raises `NotFound`."""
    return await _stored(client, *await named_version(client, model))


async def _of_folder(client: swarm.Mesh, folder: str) -> Manifest:
    """Raises `PlanError` where its version is another one in the mesh."""
    manifest, _ = read_dir(folder)
    try:
        stored = await _stored(client, manifest.model, manifest.version)
    except NotFound:
        return manifest
    if [shard.sha256 for shard in stored.shards] != [shard.sha256 for shard in manifest.shards]:
        raise PlanError(
            f"{manifest.model}@{manifest.version} in the mesh is another one than {folder}: split "
            "it with another --version"
        )
    return manifest


async def _stored(client: swarm.Mesh, name: str, version: str) -> Manifest:
    return Manifest.from_json(await client.registry.manifest(name, version))


def _stages_of(manifest: Manifest) -> tuple[Measured, tuple[Codec, ...]]:
    """The stages as nodes of role auto take them: each has a session of its own. And the codecs
    that its owner allows."""
    measured = of_manifest(manifest)
    shards = [shard for shard in manifest.shards if shard.stage > 0]
    segments = tuple(
        Segment(segment.name, segment.ms, need_of(shard.bytes), out=segment.out)
        for segment, shard in zip(measured.segments, shards, strict=True)
    )
    facts = facts_of(manifest, ModelInfo.from_manifest(manifest.to_json()), AUTO)
    return replace(measured, segments=segments), codecs_of(facts[0].received_as)


async def _usual(client: swarm.Mesh, nodes: Iterable[ToldNode]) -> dict[Version, list[float]]:
    """How long the stages of the versions that nodes have measured take where they were split."""
    found = {}
    for version in {version for told in nodes for version in told.paces}:
        try:
            manifest = await _stored(client, *version)
        except NotFound:  # it was removed meanwhile
            continue
        found[version] = [shard.compute_ms for shard in manifest.shards if shard.stage > 0]
    return found


def _told(found: MeshDevices, nodes: Iterable[ToldNode]) -> list[dict[str, Any]]:
    """The field `devices` of a plan's file."""
    links = {told.node.node: told.node.link for told in nodes}

    def row(device: Device) -> dict[str, Any]:
        link, room = links.get(device.name, NEAR), device.memory
        return {
            "name": device.name,
            "times": found.how[device.name],
            "memory_mb": round(room / 1e6) if isfinite(room) else None,
            "link": None if link == NEAR else asdict(link),
        }

    return [row(device) for device in found.devices if device.name != REQUESTER]
