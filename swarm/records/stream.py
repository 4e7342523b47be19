"""The audit's stream: how it is made, and how it is read."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from swarm.clock import parse_rfc3339
from swarm.errors import ApiError, NoResponders, Unavailable
from swarm.link import Link, jetstream
from swarm.records.chain import Extent
from swarm.records.subjects import RecordSubjects
from swarm.subjects import Subjects, api, republished

NS = 1_000_000_000
READ_TIMEOUT = 5.0  # seconds
NEARLY_FULL = 2  # times what it holds: of a stream that its bytes bound
AHEAD = 32  # messages that are asked for at a time

_SUBJECT = re.compile(rb"Nats-Subject: ([^\r\n]+)")


@dataclass(frozen=True, slots=True)
class AuditLimits:
    """What the stream keeps; its oldest records go first. max_age: seconds. max_bytes: of all
    records."""

    max_age: float = 90 * 86400.0
    max_bytes: int = 256 << 20


def stream_config(subjects: Subjects, limits: AuditLimits) -> dict[str, Any]:
    """The stream's configuration, as JetStream's API takes it. The server itself deletes no single
    record for anybody, and that cannot be changed later."""
    return {
        "name": RecordSubjects.of(subjects).audit_stream,
        "subjects": [RecordSubjects.of(subjects).audit_all],
        "storage": "file",
        "discard": "old",
        "max_age": int(limits.max_age * NS),
        "max_bytes": limits.max_bytes,
        "duplicate_window": 120 * NS,
        "deny_delete": True,
        "deny_purge": True,
        "allow_direct": True,
        "republish": republished(subjects.root, "audit"),
    }


async def ensure_audit(link: Link, subjects: Subjects) -> None:
    """Make the stream unless it is there, or this user may not: an operator makes it then. Raises
    `ApiError`, `Unavailable`, `NotConnected`."""
    config = stream_config(subjects, AuditLimits())
    if not link.may_call(api("STREAM.CREATE", config["name"])):
        return
    present = (await jetstream.ensure_bounded_stream(link, config))["config"]
    if "republish" not in present:  # made by an older swarm
        changes = {"republish": config["republish"]}
        await jetstream.change_stream(link, config["name"], changes)


async def limit_audit(
    link: Link, subjects: Subjects, max_age: float | None, max_bytes: int | None
) -> tuple[AuditLimits, int]:
    """Make the stream, or change its limits; None for one that stays as it is. Returns its limits,
    and how many servers keep a copy. Raises as `ensure_audit`."""
    usual = AuditLimits()
    first = AuditLimits(max_age or usual.max_age, max_bytes or usual.max_bytes)
    wanted = stream_config(subjects, first)
    await jetstream.ensure_bounded_stream(link, wanted)
    asked = {"max_age": max_age and int(max_age * NS), "max_bytes": max_bytes}
    changes = {name: value for name, value in asked.items() if value is not None}
    config = await jetstream.change_stream(link, wanted["name"], changes)
    limits = AuditLimits(int(config["max_age"]) / NS, int(config["max_bytes"]))
    return limits, int(config["num_replicas"])


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One message of a stream: its number, its subject, its bytes."""

    place: int
    subject: str
    data: bytes


async def extent_of(link: Link, stream: str) -> Extent | None:
    """What a stream holds; None where there is no such stream. Raises `ApiError`, `Unavailable`."""
    try:
        info = await jetstream.call(link, api("STREAM.INFO", stream))
    except ApiError as error:
        if error.err_code == jetstream.STREAM_NOT_FOUND:
            return None
        raise
    state = info["state"]
    since = str(state["first_ts"]) if state["messages"] else ""
    by_limits = may_have_removed(info)
    return Extent(int(state["first_seq"]), int(state["last_seq"]), since, by_limits)


def may_have_removed(info: Mapping[str, Any]) -> bool:
    """Whether a stream's limits, as they are now, may have removed its oldest messages. info: what
    the server says of it, its own times among that."""
    config, state = info["config"], info["state"]
    age = parse_rfc3339(info["ts"]) - parse_rfc3339(info["created"])  # nanoseconds
    past = [
        0 < config["max_age"] <= age,
        # The oldest go first: it stays nearly full.
        0 < config["max_bytes"] <= NEARLY_FULL * state["bytes"],
        0 < config["max_msgs"] <= state["messages"],
        config["max_msgs_per_subject"] > 0,
    ]
    return any(past)


async def read_stream(link: Link, stream: str, extent: Extent) -> AsyncIterator[StoredRecord]:
    """The messages of a stream in their order; those that are gone are left out. Raises
    `Unavailable`, `NotConnected`."""
    for begin in range(extent.first, extent.last + 1, AHEAD):
        places = range(begin, min(begin + AHEAD, extent.last + 1))
        for found in await asyncio.gather(*(_read(link, stream, place) for place in places)):
            if found is not None:
                yield found


async def _read(link: Link, stream: str, place: int) -> StoredRecord | None:
    question = json.dumps({"seq": place}).encode()
    try:
        message = await link.request(
            api("DIRECT.GET", stream), question, READ_TIMEOUT, from_server=True
        )
    except (NoResponders, TimeoutError):
        raise Unavailable(f"stream {stream} does not answer") from None
    if message.status:
        return None
    subject = _SUBJECT.search(message.headers or b"")
    return StoredRecord(place, subject[1].decode() if subject else "", bytes(message.data))
