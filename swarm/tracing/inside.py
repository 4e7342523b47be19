"""Work inside a stage's run that asks other stages, as the hop of a traced request tells of it.

Such a stage adds one field to its hop, `inside`, a list of maps:

    name, at_us, us   of the piece of work; µs from the run's begin, and its length
    span              16 hexadecimal digits: the parent in the header of what it asks
    reads             the names of pieces whose results it takes
    about             what else is to be said of it: texts, numbers
    asks              its requests, the first ones: `at_us`, `us` and `hops`, of their answers
    own               whether the node itself sends the spans of its requests

All of it is bounded in bytes: the rest is left out, and the field `inside_cut` counts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

from swarm.errors import DecodeError
from swarm.wire.hops import Hop

INSIDE, CUT = "inside", "inside_cut"
MOST_BYTES = 16 << 10  # of a hop's field
MOST_PIECES, MOST_ASKS, MOST_HOPS = 64, 8, 16
LONGEST_TEXT = 200  # characters
LONGEST = 1 << 40  # µs: other nodes say these numbers, and may say any
_SPAN = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class InnerAsk:
    """A request of a piece of work. at: µs from the run's begin; length: µs. hops: of its
    answer."""

    at: int
    length: int
    hops: tuple[Hop, ...] = ()


@dataclass(frozen=True, slots=True)
class InnerWork:
    """A piece of work inside a run; see the module."""

    name: str
    at: int
    length: int
    span: str = ""
    reads: tuple[str, ...] = ()
    about: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    asks: tuple[InnerAsk, ...] = ()
    own: bool = False


def told_inside(work: Sequence[InnerWork]) -> dict[str, Any]:
    """The fields of a hop."""
    told: list[dict[str, Any]] = []
    room = MOST_BYTES
    for piece in work[:MOST_PIECES]:
        doc = _doc(piece)
        if (size := len(msgpack.packb(doc))) > room:
            doc["asks"] = []
            size = len(msgpack.packb(doc))
        if size > room:
            break
        told.append(doc)
        room -= size
    missing = len(work) - len(told)
    return {INSIDE: told, **({CUT: missing} if missing else {})}


def _doc(piece: InnerWork) -> dict[str, Any]:
    doc: dict[str, Any] = {
        "name": piece.name,
        "at_us": piece.at,
        "us": piece.length,
        "reads": list(piece.reads),
        "about": {
            key: value[:LONGEST_TEXT] if isinstance(value, str) else value
            for key, value in piece.about.items()
        },
        "asks": [
            {"at_us": ask.at, "us": ask.length, "hops": [hop.as_json() for hop in ask.hops]}
            for ask in piece.asks[:MOST_ASKS]
        ],
    }
    if piece.span:
        doc["span"] = piece.span
    return doc | {"own": True} if piece.own else doc


def inside_of(hop: Hop) -> list[InnerWork]:
    """What a hop tells of the work inside its run; a node may say anything, so what is of another
    form is left out."""
    return list(_pieces(hop.extra.get(INSIDE)))


def _pieces(told: object) -> Iterator[InnerWork]:
    for doc in _maps(told, MOST_PIECES):
        name, span = doc.get("name"), doc.get("span")
        if not isinstance(name, str):
            continue
        about, reads = doc.get("about"), doc.get("reads")
        yield InnerWork(
            name[:LONGEST_TEXT],
            _us(doc.get("at_us")),
            _us(doc.get("us")),
            span if isinstance(span, str) and _SPAN.fullmatch(span) else "",
            tuple(one for one in _list(reads, MOST_PIECES) if isinstance(one, str)),
            dict(_said(about)) if isinstance(about, dict) else {},
            tuple(
                InnerAsk(_us(ask.get("at_us")), _us(ask.get("us")), tuple(_hops(ask.get("hops"))))
                for ask in _maps(doc.get("asks"), MOST_ASKS)
            ),
            doc.get("own") is True,
        )


def _said(about: Mapping[Any, Any]) -> Iterator[tuple[str, str | int | float | bool]]:
    for key, value in list(about.items())[:MOST_PIECES]:
        if isinstance(key, str) and isinstance(value, str | int | float):
            yield key, value[:LONGEST_TEXT] if isinstance(value, str) else value


def _hops(told: object) -> Iterator[Hop]:
    for doc in _maps(told, MOST_HOPS):
        try:
            yield Hop.from_doc(doc)
        except DecodeError:
            continue


def _list(told: object, most: int) -> list[Any]:
    return told[:most] if isinstance(told, list) else []


def _maps(told: object, most: int) -> Iterable[dict[Any, Any]]:
    return (each for each in _list(told, most) if isinstance(each, dict))


def _us(told: object) -> int:
    return max(0, min(told, LONGEST)) if type(told) is int else 0
