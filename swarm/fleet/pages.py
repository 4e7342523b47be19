"""The fleet's view as one node tells it, in pages: all that its gossip knows of every node.

A page begins behind the node id that the question names. Ids are sorted, so any node can answer the
question for any page, and pages of two nodes can follow each other.
"""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swarm.errors import DecodeError, InvalidArgument
from swarm.fleet.advertised import stage_loads
from swarm.fleet.documents import (
    COUNT,
    LATENCY,
    MOST_STAGES,
    Faults,
    Reader,
    form,
    name,
    nullable,
    number,
    parse,
    rows,
    text,
)
from swarm.gossip import PeerView
from swarm.subjects import TOKEN

MOST_NODES, DEFAULT_NODES = 500, 200  # of one page
PAGE_BYTES = 256 << 10  # a page has one node at least
LARGEST_QUESTION = 1024  # bytes
LARGEST_PAGE = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Question:
    """Which page: of nodes whose ids come after `after`, `limit` of them at most."""

    after: str = ""
    limit: int = DEFAULT_NODES

    def encoded(self) -> bytes:
        """As it is sent."""
        return json.dumps({"after": self.after, "limit": self.limit}).encode()


def read_question(data: bytes | memoryview) -> Question:
    """The question in a request; an empty one asks for the first page. Raises `InvalidArgument`."""
    if not len(data):
        return Question()
    with contextlib.suppress(DecodeError):
        doc = parse(data, LARGEST_QUESTION)
        after, limit = doc.get("after", ""), doc.get("limit", DEFAULT_NODES)
        named = isinstance(after, str) and (not after or TOKEN.fullmatch(after))
        if named and type(limit) is int and 1 <= limit <= MOST_NODES:
            return Question(after, limit)
    raise InvalidArgument(
        f'ask for a page with nothing, or {{"after": "<node id>", "limit": 1 to {MOST_NODES}}}'
    )


def node_entry(peer: PeerView) -> dict[str, Any]:
    """What the gossip tells of a node; times in milliseconds, as in status documents. state:
    alive, suspect, dead or left."""
    values = peer.values
    stages = [
        {
            "model": model,
            "version": version,
            "stage": stage,
            "waiting": load[0],
            "in_hand": load[1],
            "compute_ms": _latency(*load[2:5]),
            "queue_ms": _latency(*load[5:8]),
        }
        for (model, version, stage), load in stage_loads(values)[:MOST_STAGES]
    ]
    return {
        "node": peer.node,
        "role": values.get("role", ""),
        "state": peer.state,
        "draining": values.get("draining") is True,
        "priority": values.get("priority", 0),
        "host_id": values.get("host", ""),
        "stages": stages,
    }


def _latency(ewma: int, p50: int, p99: int) -> dict[str, float]:
    return {"p50": p50 / 1e3, "p99": p99 / 1e3, "ewma": ewma / 1e3}


def page(
    question: Question,
    view: Mapping[str, PeerView],
    mesh: str,
    by: str,
    at: str,
    most_bytes: int = PAGE_BYTES,
) -> dict[str, Any]:
    """The page that a question asks for. by: the node that answers. at: RFC 3339."""
    ids = sorted(view)
    wanted = ids[bisect_right(ids, question.after) :]
    entries: list[dict[str, Any]] = []
    size = 0
    for node in wanted[: question.limit]:
        entry = node_entry(view[node])
        size += len(json.dumps(entry))
        if entries and size > most_bytes:
            break
        entries.append(entry)
    more = len(entries) < len(wanted)
    return {
        "v": 1,
        "mesh": mesh,
        "by": by,
        "at": at,
        "total": len(ids),
        "nodes": entries,
        "next": entries[-1]["node"] if more else None,
    }


def _peer_state(value: object, where: str, faults: Faults) -> object:
    known = ("alive", "suspect", "dead", "left")
    return value if value in known else faults.add(where, "is no state of a peer")


def _flag(value: object, where: str, faults: Faults) -> object:
    return value if isinstance(value, bool) else faults.add(where, "is neither true nor false")


_STAGE: Mapping[str, Reader] = {
    "model": name,
    "version": name,
    "stage": number(0, 4096),
    "waiting": COUNT,
    "in_hand": COUNT,
    "compute_ms": LATENCY,
    "queue_ms": LATENCY,
}
_ENTRY = form(
    {
        "node": name,
        "role": name,
        "state": _peer_state,
        "draining": _flag,
        "priority": number(0, 9),
        "host_id": text,
        "stages": rows(form(_STAGE, ("model", "version", "stage")), MOST_STAGES),
    },
    ("node", "state"),
)
_PAGE = form(
    {
        "v": number(1, 1),
        "by": name,
        "total": COUNT,
        "nodes": rows(_ENTRY, MOST_NODES),
        "next": nullable(name),
    },
    ("v", "nodes", "next"),
)


def read_page(data: bytes | memoryview) -> dict[str, Any]:
    """A page, with the fields that are of their types. Raises `DecodeError`; `InvalidArgument`
    where the node that was asked refused the question."""
    doc = parse(data, LARGEST_PAGE)
    if isinstance(doc.get("error"), str):
        raise InvalidArgument(doc["error"])
    found = _PAGE(doc, "", Faults())
    if not isinstance(found, dict):
        raise DecodeError("no page of a fleet's view")
    return found
