"""`swarm model …`: split, inspect, push, list, rollback, serve."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

import swarm
from nodes.access import read_replicas
from nodes.cli.acts import on_record
from nodes.cli.arrays import read_inputs
from nodes.cli.codec_error import AllowedCodecs, codecs_lines, with_codecs
from nodes.cli.model_options import PushOptions, SplitOptions
from nodes.cli.objective import objective_of, set_objective
from nodes.cli.options import SignedTarget, Target
from nodes.cli.upkept import upkept_document, upkept_lines
from nodes.cli.with_mesh import client_of
from nodes.console import conclude, err, out, print_json
from nodes.event_loop import end_with_supervisor
from nodes.feature import AtPush, Given, Source
from nodes.features import features, first
from nodes.limits import lane_bytes
from nodes.progress import progress
from nodes.versions.lanes import lanes_maker
from nodes.versions.sealing import sealed_version
from nodes.versions.upkeep import make_stores, upkeep_by_operator
from shards.manifest import Manifest, read_dir, write_dir
from shards.parts import ModelHints
from shards.weights.chunks import piece_lengths
from swarm.errors import InvalidArgument
from swarm.fleet.events import ensure_events
from swarm.link import jetstream
from swarm.model import ModelInfo, unknown_model
from swarm.models.registry import InForce
from swarm.models.replicas import raise_all_replicas
from swarm.scratch import Scratch
from swarm.security.sealed import ModelKey
from swarm.transport.lane import check_one_domain, find_streams


def model_name(path: str) -> str:
    """A model name from a file's name: what may not stand in a subject becomes `-`."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", Path(path).stem).strip("-") or "model"


def read_model(path: str) -> Path:
    """The file, checked. Raises `InvalidArgument`."""
    from shards.foreign import foreign

    file = Path(path)
    if file.is_dir():
        raise InvalidArgument(
            foreign(file) or f"{path} is a folder: give the .onnx file in it that is meant"
        )
    if not file.is_file():
        raise InvalidArgument(
            f"{path}: no such file; give an .onnx file, or a language model's folder"
        )
    return file


def read_source(path: str) -> tuple[Path | bytes, ModelHints | None]:
    """A model's file, and what lies beside it where a feature reads such a path.

    Raises `InvalidArgument`, ModelError.
    """
    source = _source(path)
    return (read_model(path), None) if source is None else source()


def check_source(path: str) -> None:
    """Raises `InvalidArgument` for what is neither a file nor a feature's."""
    if _source(path) is None:
        read_model(path)


def _source(path: str) -> Source | None:
    found = (feature.source(path) for feature in features())
    return next((source for source in found if source is not None), None)


async def run_split(file: str, options: SplitOptions, given: Given, as_json: bool) -> None:
    """`swarm model split`."""
    end_with_supervisor()
    from shards.split.balance import LINK_BYTES_PER_MS, ONE_HOST_BYTES_PER_MS
    from shards.split.split import split

    addition = first(lambda feature: feature.addition(options))
    cuts = first(lambda feature: feature.cuts(given))
    if cuts is None:
        cuts = [[c] for c in options.cuts.split(",") if c] or None
    model, hints = read_source(file)
    known = [read_dir(folder)[0] for folder in options.like.split(",") if folder]
    with progress(f"splitting {file}: timing its segments", silent=as_json):
        result = split(
            model,
            name=options.name or model_name(file),
            version=options.version,
            stages=options.stages if cuts is None else None,
            cuts=cuts,
            edge_layers=options.edge_layers or None,
            edge_cut=options.edge_cut or None,
            lighter=read_model(options.lighter).read_bytes() if options.lighter else None,
            bandwidth=ONE_HOST_BYTES_PER_MS if options.one_host else LINK_BYTES_PER_MS,
            addition=addition,
            hints=hints,
            batch=options.batch,
            known=known,
            example=read_inputs(options.example) if options.example else None,
            shapes=options.shapes(),
            # With a task they are those that are read of all.
            outputs=() if options.task else [name for name in options.outputs.split(",") if name],
        )
    write_dir(options.output, result.manifest, result.files)
    show(result.manifest, as_json)
    if not as_json:
        for note in result.notes:
            err.print(f"note: {note}", markup=False, soft_wrap=True)
        err.print(f"written to {options.output}; next: swarm model push {options.output}")


async def run_inspect(folder: str, as_json: bool) -> None:
    """`swarm model inspect`."""
    manifest, fetch = read_dir(folder)
    for name in manifest.files():
        fetch(name)  # raises where the file is not the one of the manifest
    show(manifest, as_json)


def show(manifest: Manifest, as_json: bool) -> None:
    """The shards of a manifest, as a table or a JSON document."""
    rows: list[dict[str, Any]] = [
        {
            "stage": shard.stage,
            "layers": [shard.start, shard.end],
            "compute_ms": round(shard.compute_ms, 4),
            "weights_bytes": shard.bytes,
            "receives": {
                s.name: [s.datatype, None if s.any_rank else list(s.shape)] for s in shard.receives
            },
            "receives_bytes": sum(s.nbytes for s in shard.receives),
        }
        for shard in manifest.shards
    ]
    lanes = lane_bytes(ModelInfo.from_manifest(manifest.to_json()))
    if as_json:
        print_json(
            {
                "lane_bytes": lanes,
                "model": manifest.model,
                "version": manifest.version,
                "batchable": manifest.batchable,
                "batching": asdict(manifest.batching),
                "lighter": manifest.lighter is not None,
                "shards": rows,
            }
            | manifest.codecs_doc()
            | dict(manifest.parts)
        )
        return
    table = Table(title=f"{manifest.model}@{manifest.version}")
    for heading in ("stage", "layers", "compute ms", "shard KB", "receives", "KB"):
        table.add_column(heading, justify="left" if heading == "receives" else "right")
    for row in rows:
        tensors = ", ".join(
            f"{name} {datatype}{' of any shape' if shape is None else shape}"
            for name, (datatype, shape) in row["receives"].items()
        )
        table.add_row(
            "edge (0)" if row["stage"] == 0 else str(row["stage"]),
            "[{}, {})".format(*row["layers"]).replace("[", r"\["),
            f"{row['compute_ms']:.3f}",
            f"{row['weights_bytes'] / 1024:.0f}",
            tensors.replace("[", r"\["),
            f"{row['receives_bytes'] / 1024:.1f}",
        )
    out.print(table)
    lines = [*example_lines(manifest), *batching_lines(manifest), *codecs_lines(manifest)]
    for feature in features():
        lines += feature.describes(manifest)
    for line in lines:
        out.print(line, soft_wrap=True, markup=False, highlight=False)
    text = f"lanes: {lanes / 1e6:.1f} MB of the server's room; a promote needs it three times"
    out.print(text, soft_wrap=True, markup=False, highlight=False)


# The slowest stage bounds the rate. Above this part of the mean it is worth a line.
_UNEVEN = 1.3


def example_lines(manifest: Manifest) -> list[str]:
    """The sizes that a model was timed with, and how uneven its stages are."""
    said = manifest.extra.get("example", "")
    lines = [said] if isinstance(said, str) and said else []
    timed = {s.stage: s.compute_ms for s in manifest.shards if s.stage > 0 and s.compute_ms > 0}
    if len(timed) < 2:
        return lines
    slowest = max(timed, key=lambda stage: timed[stage])
    ratio = timed[slowest] * len(timed) / sum(timed.values())
    if ratio > _UNEVEN:
        lines.append(
            f"uneven: stage {slowest} takes {ratio:.2f} of the mean of the stages, and bounds the "
            "rate. Give it more nodes, or ask for other --stages"
        )
    return lines


def batching_lines(manifest: Manifest) -> list[str]:
    """Whether requests share runs, and why not; none for a kind with a proof of its own."""
    batching = manifest.batching
    if manifest.kind is not None:
        return []
    if batching.by == "structure":
        return ["requests share runs: the graph keeps their rows apart, and runs confirm it"]
    if batching.by == "owner":
        return ["requests share runs: its owner says that their rows stay apart (--batch on)"]
    return [
        f"requests run one by one: {batching.why or 'nothing shows that their rows stay apart'}"
    ]


async def _check_domain(client: swarm.Mesh, model: str, version: str) -> None:
    """Raises `TwoDomains` where a linked server has the lanes of this version already."""
    link = client.link
    if link.domain:  # a server without one is seldom linked, and its nodes look too
        streams = await find_streams(link, client.subjects, model, version)
        check_one_domain(streams, link.domain, f"{model}@{version}")


async def run_push(folder: str, options: PushOptions, given: Given, target: SignedTarget) -> int:
    """`swarm model push`; returns its exit code."""

    async def work(client: swarm.Mesh) -> int:
        key = ModelKey.of(options.model_key)
        codecs = AllowedCodecs(options.allow_codec, options.allow_result_codec, options.samples)
        manifest, fetch = read_dir(folder)
        for name in manifest.files():
            fetch(name)  # raises where the file is not the one of the manifest
        files = {name: Path(folder) / name for name in manifest.files()}
        beside = [each for feature in features() for each in feature.pushes(given)]
        for each in beside:
            await each.before(client, manifest)
        if names := dict.fromkeys(codecs.for_features() + codecs.for_results()):
            with progress(f"measuring the error of {', '.join(names)}", silent=target.json):
                manifest = await with_codecs(manifest, folder, codecs)
        if key is None:
            return await push(client, manifest, files, beside)
        with Scratch("sealed") as scratch:
            sealed = await sealed_version(client, manifest, files, key, scratch)
            return await push(client, *sealed, beside)

    async def push(
        client: swarm.Mesh,
        manifest: Manifest,
        files: dict[str, Path],
        beside: Sequence[AtPush],
    ) -> int:
        objective = objective_of(options.p99, options.errors)
        await _check_domain(client, manifest.model, manifest.version)
        size = sum(path.stat().st_size for path in files.values())
        title = f"pushing {len(files)} files, {size / 1024:.0f} KB"
        with progress(title, total=size, silent=target.json) as sent:
            prepare = lanes_maker(client, options.lanes)
            info = await client.registry.push(
                manifest.to_json(), files, prepare=prepare, sent=sent, cut=piece_lengths
            )
            await make_stores(client)
            await ensure_events(client.link, client.subjects)
            kept = await upkeep_by_operator(client, [info.model])
            raised = await raise_all_replicas(client.link, client.subjects)
        await on_record(client, "push", info.model, info.version)
        if objective is not None:
            await set_objective(client, info.model, objective)
        if options.promote:
            previous = await client.registry.promote(info.model, info.version)
            await on_record(client, "promote", info.model, info.version, previous=previous)
        serving = await client.registry.serving(info.model)
        doc: dict[str, Any] = {"model": info.model, "version": info.version, "serving": serving}
        told = [await each.after(client, info) for each in beside]
        for fields, _ in told:
            doc |= fields
        if target.json:
            doc |= upkept_document(kept) | ({"raised": raised} if raised else {})
            print_json(doc | manifest.codecs_doc())
        else:
            if raised:
                copies = f"{jetstream.replicas_of(client.link)} servers keep"
                out.print(f"{copies} what one server kept: {', '.join(raised)}", soft_wrap=True)
            out.print(f"pushed {info.model}@{info.version}; version {serving} serves")
            for line in upkept_lines(kept):
                out.print(line, soft_wrap=True, markup=False)
            for _, line in told:
                out.print(line, soft_wrap=True)
            for line in codecs_lines(manifest):
                out.print(line, soft_wrap=True)
            out.print(
                f"next, on each device: swarm-node --role shard-1 --model {info.model} --nats URL"
            )
            if client.registry.signs_as:
                out.print(
                    f"and first, on another device: swarm keys trust {client.registry.signs_as}",
                    soft_wrap=True,
                )
        return 0

    async with client_of(target, replicas=read_replicas(options.replicas)) as client:
        return await work(client)


async def run_list(target: Target) -> None:
    """`swarm model list`."""
    async with client_of(target) as client:
        rows: list[dict[str, Any]] = []
        for model, version in await client.registry.models():
            desired = await client.registry.desired(model) or {"serve": []}
            share = next(
                (e.get("share", 100) for e in desired["serve"] if e["version"] == version), 0
            )
            rows.append({"model": model, "version": version, "share": share})
        if target.json:
            print_json({"models": rows})
            return
        table = Table("model", "version", "share of traffic")
        for row in rows:
            table.add_row(row["model"], row["version"], f"{row['share']} %")
        out.print(table if rows else f"no models in mesh {target.mesh!r}: swarm model push DIR")


async def run_rollback(model: str, target: SignedTarget) -> None:
    """`swarm model rollback`."""
    async with client_of(target) as client:
        version = await client.registry.rollback(model)
        await on_record(client, "rollback", model, version)
        doc = {"model": model, "version": version}
        kept = await upkeep_by_operator(client, [model])
        lines = (f"{model}@{version} serves again", *upkept_lines(kept))
        conclude(target.json, doc | upkept_document(kept), *lines)


async def run_samples(model: str, allowed: str, target: SignedTarget) -> None:
    """`swarm model samples`."""
    async with client_of(target) as client:
        if allowed not in ("on", "off"):
            raise InvalidArgument(f"{allowed!r}: it is on or off")
        await client.registry.allow_samples(model, allowed == "on")
        await on_record(client, "samples", model, allowed=allowed)
        doc = {"model": model, "samples": allowed == "on"}
        conclude(target.json, doc, f"samples of {model}'s traffic: {allowed}")


async def run_serve(model: str, state: str, target: SignedTarget) -> None:
    """`swarm model serve`."""
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
        return Path(path).read_text()
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"the desired state: {error}") from None


async def run_promote(model: str, target: SignedTarget) -> None:
    """`swarm model promote`."""
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


async def run_model_status(model: str, target: Target) -> None:
    """`swarm model status`."""
    async with client_of(target) as client:
        name = model.partition("@")[0]
        doc = served_document(name, await client.registry.in_force(name))
        print_json(doc) if target.json else show_served(doc)


def served_document(model: str, present: InForce | None) -> dict[str, Any]:
    """What serves whom. Raises `NotFound` where nothing does."""
    if present is None:
        raise unknown_model(model)
    serve = {entry.version: entry.share for entry in present.state.serve}
    return {"model": model, "serve": serve, "pins": dict(present.state.pins)}


def show_served(doc: dict[str, Any]) -> None:
    """As `served_document` made it."""
    shares = ", ".join(f"{version} ({share:g} %)" for version, share in doc["serve"].items())
    out.print(f"{doc['model']}: version {shares} serves")
    for agent, version in doc["pins"].items():
        out.print(f"agent {agent} keeps to version {version}", markup=False)


async def run_pin(model: str, agent: str, version: str, target: SignedTarget) -> None:
    """`swarm model pin`."""
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
