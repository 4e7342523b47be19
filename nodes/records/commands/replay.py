"""`swarm replay`: run again elsewhere what `swarm record` has kept."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from rich.table import Table

import swarm
from nodes.cli.command import Named, argument, option, seldom
from nodes.cli.options import MODEL, MODEL_KEY, VERSION, Target
from nodes.cli.with_mesh import client_of
from nodes.console import ago, out, print_json
from nodes.records.recorded import Recorded, recorded, recorded_models
from nodes.records.session import (
    RepeatedStage,
    Replay,
    ReplaySession,
    replay_each,
    replay_other,
    replay_same,
)
from swarm.errors import InvalidArgument, NotFound
from swarm.security.sealed import ModelKey
from swarm.security.signed_entries import Verifier
from swarm.security.trusted_keys import TrustedKeys
from swarm.subjects import token

IDS_SHOWN = 10


@dataclass(frozen=True)
class ReplayOptions:
    """Of `swarm replay`."""

    since: str = option("", "All requests of the last 5m, 2h, 1d.")
    version: Annotated[str, VERSION] = option(
        "", "Run them with this version instead, and compare the answers."
    )
    model: Annotated[str, MODEL] = option(
        "", "Only requests of NAME, or NAME@VERSION; of any when empty."
    )
    tolerance: float = seldom(0.0, "Largest deviation that counts as equal; 0: equal bits.", min=0)
    model_key: str = option("", MODEL_KEY, envvar="SWARM_MODEL_KEY")


async def replay(
    options: ReplayOptions,
    target: Target,
    id: Annotated[str, Named("request")] = argument(
        "", "One request, as its answer or `swarm audit` says.", metavar="[ID]"
    ),
) -> int:
    """Run recorded requests again, off the serving path, and compare hop by hop.

    Exits with 0 where all is equal, with 1 where something differs."""
    async with client_of(target, signs=False, **_verifier()) as client:
        since = options.since
        if bool(id) == bool(since):
            raise InvalidArgument("give one of ID and --since 5m")
        name, _, of_version = options.model.partition("@")
        last = ago(since) if since else math.inf
        wanted = token(id, "request id") if id else ""
        names = [token(name, "model name")] if name else []
        found: list[Recorded] = []
        for each in names or await recorded_models(client.link, client.subjects):
            found += await recorded(client.link, client.subjects, each, wanted, last)
        chosen = [each for each in found if of_version in ("", each.version)]
        if not chosen:
            which = f"request {id}" if id else f"request of the last {since}"
            raise NotFound(f"no {which} was recorded: swarm record {name or 'MODEL'} --for 1m")
        key = ModelKey.of(options.model_key)
        replays = await _replayed(client, chosen, options.version, key)
        good = all(each.equal(options.tolerance) for each in replays)
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
    sessions: dict[tuple[str, str], ReplaySession] = {}
    needed = {(each.model, each.version) for each in chosen}
    if version:
        needed |= {(each.model, version) for each in chosen}
    try:
        for model, of_version in sorted(needed):
            sessions[model, of_version] = await ReplaySession.open(client, model, of_version, key)

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
                **({"part": step.part} if step.part else {}),
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
    return doc if replay.found is None else doc | replay.found.document()


def _finite(step: RepeatedStage) -> float | None:
    """JSON has no infinity."""
    if step.difference is None or not math.isfinite(step.difference.deviation):
        return None
    return step.difference.deviation


def _time(at: float) -> str:
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _verdict(step: RepeatedStage) -> tuple[str, str]:
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
        table.add_row(_place(step), step.node, bits, deviation, "" if step.part else ms)
    out.print(table)
    if replay.otherwise is not None:
        same = "decides otherwise" if replay.otherwise else "decides the same"
        out.print(f"version {replay.version} {same}")
    if replay.found is not None:
        for line in replay.found.lines():
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


def _place(step: RepeatedStage) -> str:
    """A stage, or a step inside its run."""
    return f"{step.stage} {step.part}".rstrip()


def _show_many(replays: list[Replay], tolerance: float) -> None:
    table = Table(title=f"{len(replays)} requests")
    for heading in ("stage", "compared", "equal bits", "max deviation", "ms now"):
        table.add_column(heading, justify="right")
    each = [step for replay in replays for step in replay.steps]
    for place in sorted({(step.stage, step.part) for step in each}):
        steps = [step for step in each if (step.stage, step.part) == place]
        compared = [step.difference for step in steps if step.difference is not None]
        most = max((d.deviation for d in compared), default=0.0)
        table.add_row(
            _place(steps[0]),
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
