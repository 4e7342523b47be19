"""A parser under attack: its valid messages, and its promise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from bench.hostile.mutations import Form
from shards.errors import ShardsError
from swarm.errors import SwarmError

FLOOR = 1 << 20
"""Bytes that any message may take: error texts, tables and caches are made at first use."""


def json_objects(message: bytes) -> int:
    """Of a JSON text, a quarter of what its values may take as objects: `{},` is three bytes, and
    an object of 72, and a list grows by moving. What strangers send has limits of its own."""
    return 12 * len(message)


TYPED = (SwarmError, ShardsError)


@dataclass(frozen=True, slots=True)
class Case:
    """parse(message): the parser; whatever it returns is fine. wrap(inner): a message that passes
    the outer check (signature, checksum), so that the parser behind it is reached; the seeds are
    inner ones then. declared(message): the bytes that the message says it takes, and that the
    parser has checked; 4 times as many, and `floor`, may be allocated.
    """

    seeds: tuple[bytes, ...]
    parse: Callable[[bytes], object]
    wrap: Callable[[bytes], bytes] | None = None
    declared: Callable[[bytes], int] = len
    floor: int = FLOOR


@dataclass(frozen=True, slots=True)
class Target:
    """open(stack): the parser, ready; the stack closes its files. share: of the messages, beside
    the others' 1.0; small for slow parsers."""

    name: str
    form: Form
    open: Callable[[ExitStack], Case]
    share: float = 1.0
