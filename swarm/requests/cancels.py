"""Requests at `infer` that their clients end, by ids that they gave and keys that they alone know.

An id may be `1`: whoever guesses it gets nothing by it. A request without a key cannot be ended.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from swarm.errors import DecodeError
from swarm.wire import oip
from swarm.wire.maps import pack, unpack_map
from swarm.wire.messages import Request, checked_key

MOST_BYTES = 4096  # of a word that ends a request
FORM = 'to end a request: {"id": "…", "key": "…"}, as the request had them'


class Cancels:
    """The requests that run here, and may be ended."""

    def __init__(self) -> None:
        self._running: dict[tuple[str, str, str], set[asyncio.Task[Any]]] = {}
        self._ended: set[asyncio.Task[Any]] = set()

    @contextmanager
    def running(self, model: str, request: Request) -> Iterator[None]:
        """Within the block the present task works on a request; it is cancelled where the client
        ends that."""
        task = asyncio.current_task()
        if not request.key or task is None:
            yield
            return
        name = (model, request.id, request.key)
        self._running.setdefault(name, set()).add(task)
        try:
            yield
        finally:
            others = self._running[name]
            others.discard(task)
            if not others:
                del self._running[name]

    def end(self, model: str, data: bytes | memoryview) -> tuple[str, int]:
        """End what a client's word names: its id, and how many requests that were. Raises
        `DecodeError`."""
        id_, key = _read(data)
        tasks = self._running.get((model, id_, key), set())
        self._ended |= tasks
        for task in tasks:
            task.cancel()
        return id_, len(tasks)

    def was_ended(self) -> bool:
        """Whether a client's word has cancelled the present task; it goes on from here, to say
        so."""
        task = asyncio.current_task()
        if task is None or task not in self._ended:
            return False
        self._ended.discard(task)
        task.uncancel()
        return True


def word(request: Request) -> bytes:
    """What ends a request that has a key."""
    return pack({"v": 1, "id": request.id, "key": request.key})


def _read(data: bytes | memoryview) -> tuple[str, str]:
    """Id and key. Raises `DecodeError`."""
    if len(data) > MOST_BYTES:
        raise DecodeError(FORM)
    doc: Any
    if oip.is_json(data):
        try:
            doc = json.loads(bytes(data))
        except (ValueError, RecursionError):
            raise DecodeError(FORM) from None
    else:
        doc = unpack_map(data, MOST_BYTES)
    if not isinstance(doc, Mapping) or not isinstance(doc.get("id", ""), str):
        raise DecodeError(FORM)
    key = checked_key(doc.get("key", ""))
    if not key:
        raise DecodeError(FORM)
    return doc.get("id", "")[:128], key
