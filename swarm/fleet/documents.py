"""Status documents and events of strangers, read into values of the types that they should have.

Whoever may publish a status can write anything in it. A reader keeps the fields that are of their
type and in range, drops the others, and says which ones those were. Texts stay as they came: who
shows them escapes them.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

from swarm.errors import DecodeError
from swarm.features import features
from swarm.subjects import TOKEN

SCHEMA_VERSION = 1
LARGEST_STATUS, LARGEST_EVENT = 64 << 10, 16 << 10  # bytes
MOST = 1e15  # no count, rate, time or memory of a node is more
LONGEST_TEXT = 500  # characters; a longer one is cut
MOST_KEYS, MOST_ROWS, MOST_STAGES, DEEPEST = 128, 64, 256, 6
MOST_FAULTS = 8  # of one document that are named

Reader = Callable[[object, str, "Faults"], Any]
_DROPPED = object()


@dataclass(slots=True)
class Faults:
    """The fields of a document whose values are not of their type or range; the first ones by name.
    A name holds no text of the document's own."""

    named: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, where: str, text: str) -> object:
        """Count a fault; returns the mark of a value that is dropped."""
        self.count += 1
        if len(self.named) < MOST_FAULTS:
            self.named.append(f"{where} {text}")
        return _DROPPED


def number(least: float = 0, most: float = MOST) -> Reader:
    """A finite number in a range."""

    def read(value: object, where: str, faults: Faults) -> object:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return faults.add(where, "is no number")
        return value if least <= value <= most else faults.add(where, "is out of range")

    return read


def text(value: object, where: str, faults: Faults) -> object:
    """A text; a long one is cut."""
    return value[:LONGEST_TEXT] if isinstance(value, str) else faults.add(where, "is no text")


def name(value: object, where: str, faults: Faults) -> object:
    """A token of a subject, or an empty text."""
    if isinstance(value, str) and (not value or TOKEN.fullmatch(value)):
        return value
    return faults.add(where, "is no name")


def rows(reader: Reader, most: int = MOST_ROWS) -> Reader:
    """A list; what is too much at its end is dropped."""

    def read(value: object, where: str, faults: Faults) -> object:
        if not isinstance(value, list):
            return faults.add(where, "is no list")
        if len(value) > most:
            faults.add(where, "is too long")
        found = (reader(one, f"{where}[]", faults) for one in value[:most])
        return [one for one in found if one is not _DROPPED]

    return read


def table(reader: Reader, most: int = MOST_KEYS) -> Reader:
    """A map from texts; what is too much is dropped."""

    def read(value: object, where: str, faults: Faults) -> object:
        if not isinstance(value, dict):
            return faults.add(where, "is no map")
        if len(value) > most:
            faults.add(where, "is too long")
        found = {k[:LONGEST_TEXT]: reader(value[k], f"{where}.*", faults) for k in [*value][:most]}
        return {k: one for k, one in found.items() if one is not _DROPPED}

    return read


def form(fields: Mapping[str, Reader], needed: tuple[str, ...] = ()) -> Reader:
    """A map whose fields have readers. Unknown fields, of later versions, are left out."""

    def read(value: object, where: str, faults: Faults) -> object:
        if not isinstance(value, dict):
            return faults.add(where or "it", "is no map")
        found: dict[str, Any] = {}
        for key, reader in fields.items():
            if key in value:
                one = reader(value[key], f"{where}.{key}" if where else key, faults)
                if one is not _DROPPED:
                    found[key] = one
        missing = [key for key in needed if key not in found]
        if missing:
            return faults.add(where or "it", f"lacks {', '.join(missing)}")
        return found

    return read


def anything(value: object, where: str, faults: Faults, depth: int = 0) -> Any:
    """JSON of any form, within bounds."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value[:LONGEST_TEXT]
    if isinstance(value, int | float):
        # No comparison with a NaN holds.
        return value if abs(value) <= MOST else faults.add(where, "is out of range")
    if depth >= DEEPEST:
        return faults.add(where, "is too deep")

    def inner(one: object, place: str, found: Faults) -> Any:
        return anything(one, place, found, depth + 1)

    reader = table(inner) if isinstance(value, dict) else rows(inner)
    return reader(value, where, faults)


def nullable(reader: Reader) -> Reader:
    return lambda value, where, faults: None if value is None else reader(value, where, faults)


COUNT = number()
SHARE = number(0, 1)
LATENCY = form({"p50": COUNT, "p99": COUNT, "ewma": COUNT})
HISTOGRAM = form({"counts": rows(COUNT), "sum": COUNT}, ("counts", "sum"))
STATES = ("waiting", "loading", "ready", "draining", "left", "failed")


def _state(value: object, where: str, faults: Faults) -> object:
    return value if value in STATES else faults.add(where, "is no state of a node")


STAGE = number(0, 4096)
_KINDS: dict[str, Reader] = {
    "names": name,
    "texts": text,
    "counts": COUNT,
    "shares": SHARE,
    "latencies": LATENCY,
    "histograms": HISTOGRAM,
    "of_counts": table(COUNT),
    "stages": STAGE,
    "any": anything,
}


def fields(more: Mapping[str, Reader] | None = None, **names: str) -> dict[str, Reader]:
    """The readers of fields, whose names stand behind their kinds; more: of other kinds."""
    known = {each: _KINDS[kind] for kind, listed in names.items() for each in listed.split()}
    return {**known, **(more or {})}


STOOD_IN = form(
    fields(names="model version", texts="cause", counts="answers recent"),
    ("model", "version", "cause", "answers", "recent"),
)
STAGE_FIELDS = fields(
    {"batch_sizes": rows(COUNT), "stood_in": rows(STOOD_IN)},
    stages="stage",
    names="model version",
    counts="weights in_hand waiting",
    of_counts="counters",
    latencies="queue_ms compute_ms",
    histograms="queue_s compute_s",
    texts="device wanted_device",
)
REQUESTS = form(
    fields(
        {"breakers": table(text), "stood_in": rows(STOOD_IN)},
        counts="under_way attempts retries hedges",
        of_counts="by_status degraded by_priority",
        latencies="latency_ms",
        histograms="latency_s",
    )
)
SLO = form(
    fields(
        names="model",
        counts="p99_ms requests slow failed",
        shares="errors",
        texts="burning",
        of_counts="burn",
    ),
    ("model",),
)
WANTED = form(
    fields(stages="stage", names="model version", counts="nodes busy replicas", any="burns"),
    ("model", "version", "stage", "replicas"),
)
FLAW = form(fields(texts="stream title detail mend of"), ("stream", "title", "detail", "mend"))
GPU = form(fields(counts="gpu used total", shares="load"), ("gpu",))
STATUS_FIELDS = fields(
    {
        "v": number(),
        "state": _state,
        "stages": rows(form(STAGE_FIELDS, ("stage",)), MOST_STAGES),
        "priority": number(0, 9),
        "gossip": form(
            fields(of_counts="peers refused events", counts="sent_bytes received_bytes")
        ),
        "requests": REQUESTS,
        "witness": form(fields(of_counts="of", counts="held taken dropped rests")),
        "slo": rows(SLO),
        "flaws": rows(FLAW),
        "placement": table(form(fields(of_counts="ways", counts="probes", texts="why"))),
        "wanted": rows(WANTED, MOST_STAGES),
        "codecs": rows(text),
        "link": form(fields(counts="round_trip_us down up")),
        "connection": form(fields(counts="round_trip_us sent resent connections")),
        "gpus": rows(GPU),
    },
    names="node role mesh model version",
    texts="host detail since at software host_id inbox",
    counts="pid queue_depth rate rss_bytes cpu_seconds uptime_s ready_ms every_s link_rate",
    of_counts="events edge expires",
)
EVENT_TEXTS: dict[str, Reader] = {"kind": name, "node": name, "role": name, "at": text}


@cache
def status_fields() -> Mapping[str, Reader]:
    """Of the core, and of the features that are there."""
    added = (import_module(each.status).STATUS for each in features() if each.status)
    return {**STATUS_FIELDS, **ChainMap(*added)}


@cache
def _status() -> Reader:
    return form(status_fields(), ("role", "state"))


def read_status(data: bytes | memoryview, node: str) -> tuple[dict[str, Any], Faults]:
    """The status document of `node`, whose id is the last token of the subject that it came on:
    the fields that can be, and the faults of the others. Fields that are not known here, which a
    later version adds, are JSON within bounds. Raises `DecodeError` where it is no
    status document of that node."""
    doc = parse(data, LARGEST_STATUS)
    if doc.get("node") != node:
        raise DecodeError("a status document of another node than its subject names")
    if doc.get("v") != SCHEMA_VERSION:
        raise DecodeError(f"not version {SCHEMA_VERSION} of status documents")
    faults = Faults()
    read = _status()(doc, "", faults)
    if read is _DROPPED:
        raise DecodeError(f"a status document that says nothing: {faults.named[-1]}")
    more = anything({k: v for k, v in doc.items() if k not in status_fields()}, "", faults)
    return {**read, **more}, faults


def read_event(data: bytes | memoryview, kind: str) -> dict[str, Any]:
    """An event, its further fields within bounds; kind: the last token of its subject. Raises
    `DecodeError`."""
    doc = parse(data, LARGEST_EVENT)
    faults = Faults()
    known: dict[str, Any] = form(EVENT_TEXTS)(doc, "", faults)
    if faults.count or known.get("kind") != kind or not known.get("node"):
        raise DecodeError("no event of the kind that its subject names")
    more = anything({k: v for k, v in doc.items() if k not in EVENT_TEXTS}, "", faults)
    return {**known, **more}


def parse(data: bytes | memoryview, largest: int) -> dict[str, Any]:
    """A JSON map of so many bytes at most. Raises `DecodeError`."""
    if len(data) > largest:
        raise DecodeError(f"a document above {largest} bytes")
    try:
        doc = json.loads(bytes(data))
    except (ValueError, RecursionError):
        raise DecodeError("no JSON document") from None
    if not isinstance(doc, dict):
        raise DecodeError("no JSON map")
    return doc
