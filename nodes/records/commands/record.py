"""`swarm record`: keep what the lanes carry."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

import swarm
from nodes.cli.acts import on_record
from nodes.cli.command import option, seldom
from nodes.cli.options import ServedModel, Target
from nodes.cli.with_mesh import client_of, named_version
from nodes.console import duration, err, out, print_json
from nodes.event_loop import stop_on_signals
from nodes.records.recording import Recording, RecordLimits
from swarm.fleet.service import FleetWatch


@dataclass(frozen=True)
class RecordOptions:
    """Of `swarm record`."""

    for_: str = option("1m", "How long: 30s, 10m.", "--for")
    share: float = seldom(1.0, "Share of the requests, by a hash of their ids: 0.01 is 1 %.")
    max_hours: float | None = seldom(
        None, "Hours that recorded requests are kept; 24 at first, and then as it is.", min=0.01
    )
    max_mb: int | None = seldom(
        None,
        "Megabytes of recorded requests, the oldest go first; 268 at first, and then as it is.",
        min=1,
    )
    again: bool = seldom(False, "Take over from a recording that was killed.")


async def record(model: ServedModel, options: RecordOptions, target: Target) -> int:
    """Keep requests and the features at each cut, payloads included, for `swarm replay`."""
    async with client_of(target) as client:
        length = duration(options.for_)
        name, version = await named_version(client, model)
        recording = Recording(client.link, client.subjects, name, version, options.share)
        handing_over = await _handing_over(client, name, version)
        if handing_over:
            err.print(
                f"{', '.join(handing_over)}: these nodes may get messages of their own host "
                "directly, which pass no lane and are not recorded: start them with --stored",
                markup=False,
                soft_wrap=True,
            )
        limits = RecordLimits(
            None if options.max_hours is None else options.max_hours * 3600.0,
            None if options.max_mb is None else options.max_mb * 1_000_000,
        )
        stop = stop_on_signals()
        await recording.start(limits, again=options.again)
        try:
            await on_record(client, "record", name, version, share=f"{options.share:g}")
            if not target.json:
                text = f"recording {options.share * 100:g} % of {name}@{version}"
                text += f" for {options.for_}; Ctrl-C ends"
                err.print(text, markup=False)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(length):
                    await stop.wait()
        finally:
            await recording.stop()
        return _report(recording, name, version, target.json)


async def _handing_over(client: swarm.Mesh, model: str, version: str) -> list[str]:
    """The nodes of a version that take messages without the server."""
    async with FleetWatch(client.link, client.subjects, events=0) as watch:
        await watch.hear_all()
        return sorted(
            name
            for name, node in watch.view.nodes.items()
            if node.status.get("inbox")
            and node.status.get("model") == model
            and any(stage.get("version") == version for stage in node.stages)
        )


def _report(recording: Recording, model: str, version: str, as_json: bool) -> int:
    doc = {
        "model": model,
        "version": version,
        "requests": recording.requests,
        "messages": recording.kept,
        "missed": recording.missed,
        "foreign": recording.foreign,
    }
    if as_json:
        print_json(doc)
    else:
        out.print(f"{doc['requests']} requests of {model}@{version}, {doc['messages']} messages")
        if recording.missed or recording.foreign:
            out.print(f"{recording.missed} messages missed, {recording.foreign} of foreign ids")
        if recording.requests:
            out.print("next: swarm replay --since 10m", markup=False)
        else:
            out.print("nothing came by a lane: are requests asked, and nodes run with --stored?")
    return 0 if recording.requests else 1
