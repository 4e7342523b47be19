"""`swarm record` and `swarm replay`: keep what the lanes carry, and run it again elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

import swarm
from nodes.cli.acts import on_record
from nodes.cli.options import RecordOptions, ReplayOptions, Target
from nodes.cli.with_mesh import client_of, named_version
from nodes.console import ago, duration, err, out, print_json
from nodes.event_loop import stop_on_signals
from nodes.records.recorded import Recorded, recorded, recorded_models
from nodes.records.recording import Recording, RecordLimits
from nodes.records.session import Replay, Session, Step, replay_each, replay_other, replay_same
from shards.cameras import document, lines
from swarm.errors import InvalidArgument, NotFound
from swarm.fleet.service import FleetWatch
from swarm.security.sealed import ModelKey
from swarm.security.signed_entries import Verifier
from swarm.security.trusted_keys import TrustedKeys
from swarm.subjects import token

IDS_SHOWN = 10


# --- record ---------------------------------------------------------------------------------


async def run_record(model: str, options: RecordOptions, target: Target) -> int:
    """`swarm record`; returns its exit code, 1 where nothing was recorded."""
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
            for name, node in watch.picture.nodes.items()
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


# --- replay ---------------------------------------------------------------------------------


async def run_replay(request: str, options: ReplayOptions, target: Target) -> int:
    """`swarm replay`; returns its exit code: 0 where all is equal, 1 where something differs or
    nothing could be compared."""
    async with client_of(target, signs=False, **_verifier()) as client:
        since = options.since
        if bool(request) == bool(since):
            raise InvalidArgument("give one of ID and --since 5m")
        name, _, of_version = options.model.partition("@")
        last = ago(since) if since else math.inf
        wanted = token(request, "request id") if request else ""
        names = [token(name, "model name")] if name else []
        found: list[Recorded] = []
        for each in names or await recorded_models(client.link, client.subjects):
            found += await recorded(client.link, client.subjects, each, wanted, last)
        chosen = [each for each in found if of_version in ("", each.version)]
        if not chosen:
            which = f"request {request}" if request else f"request of the last {since}"
            raise NotFound(f"no {which} was recorded: swarm record {name or 'MODEL'} --for 1m")
        key = ModelKey.of(options.model_key)
        replays = await _replayed(client, chosen, options.version, key)
        good = all(replay.equal(options.tolerance) for replay in replays)
        if target.json:
            print_json({"equal": good, "replays": [_document(each) for each in replays]})
        elif len(replays) == 1:
            _show_one(replays[0])
        else:
            _show_many(replays, options.tolerance)
        return 0 if good else 1


def _verifier() -> dict[str, Any]:
    """Its models are run here: with SWARM_TRUST only those that a key in these files signed."""
    trusted = os.environ.get("SWARM_TRUST", "")
    return {"verifier": Verifier(TrustedKeys.of(trusted))} if trusted else {}


async def _replayed(
    client: swarm.Mesh, chosen: list[Recorded], version: str, key: ModelKey | None
) -> list[Replay]:
    """All of them, with as few sessions as there are versions; weight versions only grow."""
    sessions: dict[tuple[str, str], Session] = {}
    needed = {(each.model, each.version) for each in chosen}
    if version:
        needed |= {(each.model, version) for each in chosen}
    try:
        for model, of_version in sorted(needed):
            sessions[model, of_version] = await Session.open(client, model, of_version, key)

        async def one(each: Recorded) -> Replay:
            then = sessions[each.model, each.version]
            if version and version != each.version:
                return await replay_other(sessions[each.model, version], then, each)
            return await replay_same(then, each)

        return await replay_each(chosen, one, version)
    finally:
        for session in sessions.values():
            session.close()


def _document(replay: Replay) -> dict[str, Any]:
    doc: dict[str, Any] = {
        "id": replay.id,
        "at": _time(replay.at),
        "version": replay.version,
        "weights": replay.weights,
        "steps": [
            {
                "stage": step.stage,
                "node": step.node,
                "compared": step.difference is not None,
                "equal": step.difference.equal if step.difference else None,
                "max_deviation": _finite(step),
                "ms": round(step.seconds * 1e3, 3),
            }
            for step in replay.steps
        ],
    }
    if replay.otherwise is not None:
        doc["decides_otherwise"] = replay.otherwise
    if replay.note:
        doc["note"] = replay.note
    return doc if replay.found is None else doc | document(replay.found)


def _finite(step: Step) -> float | None:
    """JSON has no infinity."""
    if step.difference is None or not math.isfinite(step.difference.deviation):
        return None
    return step.difference.deviation


def _time(at: float) -> str:
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _verdict(step: Step) -> tuple[str, str]:
    if step.difference is None:
        return "not recorded", ""
    if step.difference.equal:
        return "equal", "0"
    deviation = step.difference.deviation
    return "differs", f"{deviation:.3g}" if math.isfinite(deviation) else "not measured"


def _show_one(replay: Replay) -> None:
    weights = f", weights {replay.weights}" if replay.weights else ""
    table = Table(title=f"{replay.id} of {_time(replay.at)}, version {replay.version}{weights}")
    for heading in ("stage", "node then", "bits", "max deviation", "ms now"):
        table.add_column(heading, justify="left" if heading == "node then" else "right")
    for step in replay.steps:
        bits, deviation = _verdict(step)
        ms = f"{step.seconds * 1e3:.2f}"
        table.add_row(str(step.stage), step.node, bits, deviation, ms)
    out.print(table)
    if replay.otherwise is not None:
        same = "decides otherwise" if replay.otherwise else "decides the same"
        out.print(f"version {replay.version} {same}")
    if replay.found is not None:
        for line in lines(replay.found):
            out.print(line, markup=False, highlight=False)
    for line in reasons([replay]):
        out.print(line)


def reasons(replays: list[Replay]) -> list[str]:
    """Why requests were not compared as a whole, in lines for people, each reason once."""
    notes = Counter(replay.note for replay in replays if replay.note)
    lines = [f"{note} (of {count} of {len(replays)} requests)" for note, count in notes.items()]
    if without := sum(not replay.compared for replay in replays):
        lines.append(
            f"{without} of {len(replays)} could not be compared at all, and count as unequal"
        )
    return lines


def _show_many(replays: list[Replay], tolerance: float) -> None:
    table = Table(title=f"{len(replays)} requests")
    for heading in ("stage", "compared", "equal bits", "max deviation", "ms now"):
        table.add_column(heading, justify="right")
    for stage in sorted({step.stage for replay in replays for step in replay.steps}):
        steps = [step for replay in replays for step in replay.steps if step.stage == stage]
        compared = [step.difference for step in steps if step.difference is not None]
        most = max((d.deviation for d in compared), default=0.0)
        table.add_row(
            str(stage),
            str(len(compared)),
            str(sum(d.equal for d in compared)),
            f"{most:.3g}" if math.isfinite(most) else "not measured",
            f"{sum(step.seconds for step in steps) / len(steps) * 1e3:.2f}",
        )
    out.print(table)
    otherwise = [replay.id for replay in replays if replay.otherwise]
    if any(replay.otherwise is not None for replay in replays):
        out.print(f"{len(otherwise)} of {len(replays)} would have been decided otherwise")
    for line in reasons(replays):
        out.print(line)
    differ = otherwise or [replay.id for replay in replays if not replay.equal(tolerance)]
    for request in differ[:IDS_SHOWN]:
        out.print(f"look closer: swarm replay {request}", markup=False)
