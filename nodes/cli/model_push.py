"""`swarm model push`: a split model is put into the mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import swarm
from nodes.access import REPLICAS_HELP, read_replicas
from nodes.cli.acts import on_record
from nodes.cli.codec_error import AllowedCodecs, codecs_lines, with_codecs
from nodes.cli.command import option, seldom
from nodes.cli.model_split import Folder, checked_files
from nodes.cli.objective import P99, Errors, objective_of, set_objective
from nodes.cli.options import MODEL_KEY, SignedTarget
from nodes.cli.upkept import upkept_document, upkept_lines
from nodes.cli.with_mesh import client_of
from nodes.console import out, print_json
from nodes.feature import AtPush, Given
from nodes.features import features
from nodes.progress import progress
from nodes.versions.lanes import lanes_maker
from nodes.versions.sealing import sealed_version
from nodes.versions.upkeep import make_stores, upkeep_by_operator
from shards.manifest import Manifest
from shards.weights.chunks import piece_lengths
from swarm.fleet.events import ensure_events
from swarm.link import jetstream
from swarm.models.replicas import raise_all_replicas
from swarm.scratch import Scratch
from swarm.security.sealed import ModelKey
from swarm.transport.lane import check_one_domain, find_streams


@dataclass(frozen=True)
class PushOptions:
    """Of `swarm model push`."""

    promote: bool = option(False, "Let this version serve all traffic at once.")
    lanes: str = seldom(
        "",
        "memory or file: make the version's lanes now, and keep them there. Empty: its nodes "
        "make them; where the server knows users they may not, and this is `file`.",
    )
    replicas: str = seldom(
        "auto", REPLICAS_HELP + " Existing ones are raised, lanes too are made so."
    )
    model_key: str = option("", MODEL_KEY)
    allow_codec: str = option(
        "",
        "Lossy codecs in which its features may travel over slow links, separated by commas: "
        "f16, i8, i6, i4. Their error is measured and kept in the manifest.",
    )
    allow_result_codec: str = seldom(
        "", "The same for its results. Empty: results stay exact, in whatever its features travel."
    )
    samples: str = seldom(
        "",
        "An .npz file with an array for each input, axis 0 the sample: for the errors of these "
        "codecs. Empty: seeded values, which say less.",
    )
    p99: P99 = ""
    errors: Errors = ""


async def push(folder: Folder, options: PushOptions, given: Given, target: SignedTarget) -> None:
    """Put a split model into the mesh, signed. A model's first version serves at once."""
    async with client_of(target, replicas=read_replicas(options.replicas)) as client:
        key = ModelKey.of(options.model_key)
        codecs = AllowedCodecs(options.allow_codec, options.allow_result_codec, options.samples)
        manifest, files = checked_files(folder)
        beside = [each for feature in features() for each in feature.pushes(given)]
        for each in beside:
            await each.before(client, manifest)
        if names := dict.fromkeys(codecs.for_features() + codecs.for_results()):
            with progress(f"measuring the error of {', '.join(names)}", silent=target.json):
                manifest = await with_codecs(manifest, folder, codecs)
        with Scratch("sealed") as scratch:
            if key is not None:
                manifest, files = await sealed_version(client, manifest, files, key, scratch)
            await _push(client, manifest, files, beside, options, target)


async def _push(
    client: swarm.Mesh,
    manifest: Manifest,
    files: dict[str, Path],
    beside: Sequence[AtPush],
    options: PushOptions,
    target: SignedTarget,
) -> None:
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


async def _check_domain(client: swarm.Mesh, model: str, version: str) -> None:
    """Raises `TwoDomains` where a linked server has the lanes of this version already."""
    link = client.link
    if link.domain:  # a server without a domain is seldom linked, and its nodes check too
        streams = await find_streams(link, client.subjects, model, version)
        check_one_domain(streams, link.domain, f"{model}@{version}")
