"""Records of the audit: what they say, their bytes, their hashes. Pure.

A record is a JSON object in one form only (sorted keys, no spaces, ASCII, no floats), so that
equal records are equal bytes. Its `hash` is the SHA-256 of these bytes without `hash` itself.
`prev` is the hash of the record before it, of the same recorder, and `sequence` counts that
recorder's records from 1 on: a record that is removed, altered or moved breaks the chain behind it.

No record has a payload or a text that somebody sent: tensors are there as hashes, a failure as its
status, and only names of agents, models and nodes are words. (The hash of something that can be
guessed, such as one bit, tells it to whoever guesses.)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import numpy as np

from swarm.errors import DecodeError
from swarm.subjects import OTHER, TOKEN, as_token
from swarm.wire.hops import CACHED, KEPT, MOST_WEIGHTS, WEIGHTS_OF, Hop
from swarm.wire.tensors import datatype_of, memory_of, plain

VERSION = 1
BEGINNING = "0" * 64  # `prev` of a recorder's first record
# A hop's field: SHA-256 of the tensors that the stage received. Bytes, which JSON leaves out: they
# are for the record, and not for the answers that users see.
RECEIVED = "received"
STEPS = "steps"  # of a hop: the same of what each step inside its run made, b"" for none
OPERATOR = "operator"  # the agent of what is done by commands
NOBODY = "-"  # the subject's token for an agent without a name
MOST_BYTES = 64 << 10  # of a record that is read
MOST_HOPS, MOST_STEPS = 64, 64  # in a record; of a hop
MOST_VERSIONS = 8  # of the weights of a step


def digest_of(tensors: Mapping[str, np.ndarray]) -> str:
    """SHA-256, hex, of tensors by name: of each in the order of the names, its name, datatype and
    shape as a line of JSON, then its bytes (little-endian, C order).

    Raises `InvalidArgument` for a dtype that has no datatype on the wire.
    """
    total = sha256()
    for name in sorted(tensors):
        array = tensors[name]
        shape = list(array.shape)
        line = json.dumps([name, datatype_of(array), shape], separators=(",", ":"))
        total.update(line.encode() + b"\n")
        total.update(memory_of(plain(array)))
    return total.hexdigest()


def agent_token(agent: str) -> str:
    """The token of the subject for an agent's name, which may be any text. `operator` is kept for
    commands."""
    name = as_token(agent) or NOBODY
    return name + OTHER if name == OPERATOR else name


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """What a record tells; the chain adds who tells it, and its place.

    agent: who asked or acted, by its own account. kind: `request`, `act`, or `end` of a chain.
    request: the id that the record is found by, "" for others; no second record of that request is
    stored. at: seconds since 1970. fields: the kind's own, of texts, integers, booleans, None, and
    lists and maps of these.
    """

    kind: str
    agent: str
    at: float
    request: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


def hop_fields(hop: Hop) -> dict[str, Any]:
    """A hop as a record has it."""
    doc: dict[str, Any] = {
        "stage": hop.stage,
        "node": as_token(hop.node),
        "queue_us": hop.queue_us,
        "compute_us": hop.compute_us,
        "batch": hop.batch,
        "weights": hop.weights,
    }
    received = hop.extra.get(RECEIVED)
    if type(received) is bytes and len(received) == 32:
        doc[RECEIVED] = received.hex()
    if steps := dict(_steps(hop.extra.get(STEPS))):
        doc[STEPS] = steps
    if weights := dict(_weights_of(hop.extra.get(WEIGHTS_OF))):
        doc[WEIGHTS_OF] = weights
    age = hop.extra.get(CACHED)
    if isinstance(age, int | float) and 0 <= age < 1 << 53:
        doc[CACHED] = int(age)
    if kept := sorted(_kept(hop.extra.get(KEPT))):
        doc[KEPT] = kept
    return doc


def _steps(told: object) -> Iterator[tuple[str, str]]:
    """What a hop says of steps; another node may say anything."""
    for name, made in [*told.items()][:MOST_STEPS] if isinstance(told, dict) else ():
        if isinstance(name, str) and type(made) is bytes and len(made) in (0, 32):
            yield as_token(name), made.hex()


def _weights_of(told: object) -> Iterator[tuple[str, list[int]]]:
    """As `_steps`; a step that asked several times may have been answered by several."""
    for name, numbers in [*told.items()][:MOST_STEPS] if isinstance(told, dict) else ():
        if isinstance(name, str) and isinstance(numbers, list):
            found = [n for n in numbers[:MOST_VERSIONS] if type(n) is int and 0 <= n < MOST_WEIGHTS]
            if len(found) == len(numbers):
                yield as_token(name), found


def _kept(told: object) -> Iterator[str]:
    """The steps of whose answers some were kept ones."""
    for name, rows in [*told.items()][:MOST_STEPS] if isinstance(told, dict) else ():
        if isinstance(name, str) and isinstance(rows, dict) and rows.get("rows"):
            yield as_token(name)


def canonical(doc: Mapping[str, Any]) -> bytes:
    """The one form of a record. Raises `ValueError` for a number that JSON cannot say."""
    text = json.dumps(doc, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("ascii")


def seal(
    entry: RecordEntry, recorder: str, sequence: int, prev: str, **more: Any
) -> tuple[bytes, str]:
    """The bytes of a record, and its hash, which is the next one's `prev`."""
    at = datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="microseconds")
    doc: dict[str, Any] = {
        **entry.fields,
        **more,
        "v": VERSION,
        "kind": entry.kind,
        "agent": entry.agent,
        "at": at.replace("+00:00", "Z"),
        "recorder": recorder,
        "sequence": sequence,
        "prev": prev,
    }
    if entry.request:
        doc["id"] = entry.request
    doc["hash"] = hash_of(doc)
    return canonical(doc), doc["hash"]


def hash_of(doc: Mapping[str, Any]) -> str:
    """SHA-256, hex, of a record without its own hash."""
    return sha256(canonical({k: v for k, v in doc.items() if k != "hash"})).hexdigest()


def parse(data: bytes | memoryview) -> dict[str, Any]:
    """A record of its bytes. Raises `DecodeError` for what is no record in the one form."""
    if len(data) > MOST_BYTES:
        raise DecodeError(f"a record of {len(data)} bytes; at most {MOST_BYTES} are read")
    try:
        doc = json.loads(bytes(data))
        if not isinstance(doc, dict) or canonical(doc) != bytes(data):
            raise DecodeError("no record in its one form")
    except (ValueError, RecursionError, TypeError):
        raise DecodeError("no JSON of a record") from None
    texts = ("kind", "agent", "at", "recorder", "prev", "hash")
    if (
        doc.get("v") != VERSION
        or type(doc.get("sequence")) is not int
        or not all(type(doc.get(key)) is str for key in texts)
        or TOKEN.fullmatch(doc["recorder"]) is None
    ):
        raise DecodeError("a record lacks a field, or has one of a wrong kind")
    return doc
