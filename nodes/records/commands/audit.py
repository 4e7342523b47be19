"""`swarm audit …`: read the audit, take it away, and find what was done to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import swarm
from nodes.cli.command import argument, option, seldom
from nodes.cli.new_path import in_folder
from nodes.cli.options import AGENT, Target
from nodes.cli.with_mesh import client_of
from nodes.console import conclude, err, out, print_json
from nodes.event_loop import stop_on_signals
from swarm.errors import DecodeError, InvalidArgument, NotFound
from swarm.fleet.service import FleetWatch
from swarm.fleet.view import FleetView
from swarm.link import LinkMessage
from swarm.records import chain
from swarm.records.chain import ChainVerdict, Extent, Fault, Head
from swarm.records.record import parse
from swarm.records.stream import StoredRecord, extent_of, limit_audit, read_stream
from swarm.records.subjects import RecordSubjects

EXPORT_VERSION = 1
FAULTS_SHOWN = 20
DAY, MB = 86400.0, 1_000_000  # seconds, bytes


async def init(
    target: Target,
    max_days: float | None = option(
        None, "Days that records are kept; 90 at first, and then as it is.", min=0.01
    ),
    max_mb: int | None = option(
        None, "Megabytes of records, the oldest go first; 268 at first, and then as it is.", min=1
    ),
) -> None:
    """Make the audit's stream, or change its limits. Nodes without rights need it made."""
    async with client_of(target) as client:
        age = None if max_days is None else max_days * DAY
        size = None if max_mb is None else max_mb * MB
        limits, copies = await limit_audit(client.link, client.subjects, age, size)
        stream = RecordSubjects.of(client.subjects).audit_stream
        doc = {"stream": stream, **asdict(limits), "copies": copies}
        most = f"up to {limits.max_bytes / MB:g} MB" if limits.max_bytes > 0 else "of any size"
        conclude(
            target.json,
            doc,
            f"records are kept for {limits.max_age / DAY:g} days, and {most}, "
            f"by {'one server' if copies == 1 else f'{copies} servers'}",
            "next: swarm-node --audit …, or swarm up --audit …",
        )


async def _extent(client: swarm.Mesh) -> Extent:
    """Raises `NotFound` where the mesh keeps no audit."""
    extent = await extent_of(client.link, RecordSubjects.of(client.subjects).audit_stream)
    if extent is None:
        raise NotFound(
            f"mesh {client.subjects.mesh!r} keeps no audit: start its nodes with --audit "
            "(or make the stream: swarm audit init)"
        )
    return extent


async def _all(client: swarm.Mesh) -> tuple[Extent, list[StoredRecord]]:
    """What the stream holds now. Records that its limits remove meanwhile are left out."""
    before = await _extent(client)
    stream = RecordSubjects.of(client.subjects).audit_stream
    stored = [each async for each in read_stream(client.link, stream, before)]
    after = await _extent(client)
    extent = replace(after if after.first > before.first else before, last=before.last)
    return extent, [each for each in stored if each.place >= extent.first]


# --- tail -----------------------------------------------------------------------------------


async def tail(
    target: Target,
    agent: Annotated[str, AGENT] = option(
        "", "Only of this agent; `operator` for what commands did."
    ),
    last: int = option(20, "Records to show.", "-n", "--last", min=1),
    follow: bool = option(False, "Go on with what comes, until Ctrl-C.", "-f", "--follow"),
) -> None:
    """Show the last records: who asked what, which nodes worked on it, with what outcome."""
    async with client_of(target) as client:
        subjects = RecordSubjects.of(client.subjects)
        wanted = subjects.audit(agent) if agent else ""
        arrived: asyncio.Queue[LinkMessage] = asyncio.Queue()
        if follow:
            client.link.subscribe(wanted or subjects.audit_all, arrived.put_nowait)
            await client.link.flush()
        _, stored = await _all(client)
        found = [each for each in stored if not wanted or each.subject == wanted]
        records = list(_records(found[-last:]))
        seen = {record["hash"] for record in records}
        if target.json:
            for record in records:
                print_json(record)
        else:
            out.print(_table(records) if records else "no record yet")
        if not follow:
            return
        stop = stop_on_signals()
        stopped = asyncio.create_task(stop.wait())
        while not stop.is_set():
            following = asyncio.create_task(arrived.get())
            await asyncio.wait({following, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                following.cancel()
                break
            for record in _records([StoredRecord(0, "", bytes(following.result().data))]):
                if record["hash"] in seen:
                    continue
                print_json(record) if target.json else out.print(
                    "  ".join(_row(record)), markup=False
                )


def _records(stored: list[StoredRecord]) -> Iterator[dict[str, Any]]:
    for each in stored:
        try:
            yield parse(each.data)
        except DecodeError as error:
            err.print(f"message {each.place} is no record: {error}", markup=False, soft_wrap=True)


COLUMNS = ("at", "agent", "did", "outcome", "nodes", "id")


def _table(records: list[dict[str, Any]]) -> Table:
    table = Table(*COLUMNS)
    for record in records:
        table.add_row(*(cell.replace("[", r"\[") for cell in _row(record)))
    return table


def _row(record: dict[str, Any]) -> list[str]:
    what = f"{record['model']}@{record['version']}" if record.get("model") else ""
    if record.get("weights"):
        what += f" weights {record['weights']}"
    outcome = str(record.get("status", ""))
    if "plan" in record:
        outcome = f"plan {record['plan']}: {record.get('why', '')}"
    if record.get("degraded"):
        outcome += ", degraded"
    if "latency_us" in record:
        outcome += f" {record['latency_us'] / 1e3:.1f} ms"
    did = {"request": "asked", "end": "left"}.get(record["kind"], str(record.get("act", "")))
    nodes = ", ".join(f"{hop['stage']}: {hop['node']}" for hop in record.get("hops", ()))
    if "to" in record:
        nodes = " -> ".join(filter(None, (record.get("from", ""), record["to"])))
    nodes = nodes or str(record.get("person", ""))
    return [record["at"], record["agent"], f"{did} {what}".strip(), outcome, nodes, _id(record)]


def _id(record: dict[str, Any]) -> str:
    return str(record.get("id", "")) or f"{record['recorder']} {record['sequence']}"


# --- export ---------------------------------------------------------------------------------


async def export(
    output: Annotated[str, typer.Argument(help="The file to write: one record a line.")],
    target: Target,
) -> int:
    """Write all records to a file that `swarm audit verify` checks without a server."""
    in_folder(output)
    async with client_of(target) as client:
        extent, stored = await _all(client)
        verdict = chain.verify(((s.place, s.data) for s in stored), extent)
        head = {
            "export": EXPORT_VERSION,
            "mesh": target.mesh,
            "first": extent.first,
            "last": extent.last,
            "since": extent.since,
            "by_limits": extent.by_limits,
            "heads": verdict.heads,
        }
        lines = [json.dumps(head, sort_keys=True)]
        lines += [f"{each.place} {_line(each.data)}" for each in stored]
        await asyncio.to_thread(Path(output).write_text, "\n".join(lines) + "\n", "utf-8")
        conclude(
            target.json,
            {"file": output, "records": len(stored), "good": verdict.good},
            f"{len(stored)} records in {output}",
            f"next, anywhere: swarm audit verify {output}",
        )
        return _judged(verdict, False, silent=True)


def _line(data: bytes) -> str:
    """A record is ASCII on one line; what is no record becomes unreadable on one line."""
    return data.decode("ascii", "replace").replace("\n", "\N{REPLACEMENT CHARACTER}")


def read_export(path: str) -> tuple[Extent, dict[str, Head], list[tuple[int, bytes]]]:
    """An export's extent, heads and numbered records. Raises `InvalidArgument`."""
    try:
        lines = Path(path).read_text(encoding="utf-8").rstrip("\n").split("\n")
        head = json.loads(lines[0])
        if head["export"] != EXPORT_VERSION:
            raise InvalidArgument(f"{path}: an export of version {head['export']!r}")
        known = str(head.get("since", "")), bool(head.get("by_limits", True))
        extent = Extent(int(head["first"]), int(head["last"]), *known)
        heads = {str(k): (int(v[0]), str(v[1])) for k, v in head["heads"].items()}
        records = []
        for line in lines[1:]:
            place, _, data = line.partition(" ")
            records.append((int(place), data.encode()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidArgument(
            f"{path} is no export of an audit ({error}): swarm audit export {path} makes one"
        ) from None
    return extent, heads, records


# --- verify ---------------------------------------------------------------------------------


async def verify(
    target: Target,
    file: str = argument("", "An export; the mesh itself when left out."),
    begin: int = seldom(
        0,
        "Number of the first message that has to be there: why those before it are gone is known. "
        "0: those that the stream's limits leave.",
        min=0,
    ),
) -> int:
    """Find records that were removed, altered or moved. Exits with 1 if there is one."""
    if file:
        extent, heads, records = read_export(file)
        return _judged(chain.verify(records, _accepted(extent, begin), heads), target.json)
    async with client_of(target) as client:
        async with FleetWatch(client.link, client.subjects, events=0) as watch:
            await watch.hear_all()
            # Before the stream is read, which may only have grown since.
            heads = stored_last(watch.view)
        extent, stored = await _all(client)
        extent = _accepted(extent, begin)
        return _judged(
            chain.verify(((s.place, s.data) for s in stored), extent, heads), target.json
        )


def _accepted(extent: Extent, begin: int) -> Extent:
    """The extent where whoever asks knows what became of all messages before `begin`."""
    return replace(extent, by_limits=True) if extent.first <= begin else extent


def stored_last(fleet: FleetView) -> dict[str, Head]:
    """The last record of each recorder, as nodes say it of themselves."""
    heads: dict[str, Head] = {}
    for node in fleet.nodes.values():
        match node.status.get("audit"):
            case {"recorder": str(recorder), "sequence": int(sequence), "hash": str(hash_)}:
                heads[recorder] = sequence, hash_
    return heads


def _show_faults(faults: list[Fault], what: str) -> None:
    for fault in faults[:FAULTS_SHOWN]:
        where = f"message {fault.place}: " if fault.place else ""
        who = f"{fault.recorder}: " if fault.recorder else ""
        err.print(f"{fault.kind}: {where}{who}{fault.text}", markup=False, soft_wrap=True)
    if len(faults) > FAULTS_SHOWN:
        err.print(f"… and {len(faults) - FAULTS_SHOWN} more {what}")


def _beginning(verdict: ChainVerdict) -> str:
    first, since = verdict.first, f", stored {verdict.since}" if verdict.since else ""
    gone = "message 1 is" if first == 2 else f"messages 1 to {first - 1} are"
    text = f"the stream begins with message {first}{since}: {gone} gone"
    if verdict.by_limits:
        return f"{text}, as its limits say, or as you do"
    return (
        f"{text}, which its limits as they are now do not explain; if you know why: swarm audit "
        f"verify --begin {first}"
    )


def _judged(verdict: ChainVerdict, as_json: bool, silent: bool = False) -> int:
    if as_json:
        print_json({"good": verdict.good, **asdict(verdict)})
    else:
        _show_faults(verdict.faults, "faults")
        if not silent:
            _show_faults(verdict.foreign, "messages that belong to no chain, and count as none")
            records = verdict.records - len(verdict.foreign)
            chains = f"{records} records in {len(verdict.heads)} chains"
            since = f" since {verdict.since}" if verdict.since else ""
            fine = f"nothing is missing or altered{since * (verdict.first > 1)}"
            out.print(
                f"{chains}: {fine if verdict.good else 'NOT as they were written'}", soft_wrap=True
            )
            if verdict.first > 1:
                out.print(_beginning(verdict), soft_wrap=True)
            if verdict.lost:
                out.print(f"recorders say themselves that {verdict.lost} records had no room")
    return 0 if verdict.good else 1
