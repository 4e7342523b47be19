"""The parser of the audit's records."""

from __future__ import annotations

import json
from contextlib import ExitStack

from bench.hostile.target import Case, Target, json_objects
from swarm.records.chain import Extent, verify
from swarm.records.record import BEGINNING, RecordEntry, canonical, hash_of, parse, seal


def _open_audit(stack: ExitStack) -> Case:
    def record(sequence: int, prev: str) -> tuple[bytes, str]:
        entry = RecordEntry(
            "request", "camera-1", 1e9, "01J", {"status": "OK", "hops": [{"stage": 1}]}
        )
        return seal(entry, "node-a", sequence, prev)

    first, digest = record(1, BEGINNING)
    second, last = record(2, digest)

    def canonically(data: bytes) -> bytes:
        """In the one form, and with the hash that it should have."""
        try:
            doc = json.loads(data)
            doc["hash"] = hash_of(doc)
            return canonical(doc)
        except (ValueError, TypeError, AttributeError, RecursionError):
            return data

    def read(data: bytes) -> None:
        verify([(1, first), (2, data), (3, second)], Extent(1, 3))  # beside it: told of, or refused
        verdict = verify([(1, first), (2, data)], Extent(1, 2), {"node-a": (2, last)})
        assert verdict.good is (data == second)  # in its place
        parse(data)

    return Case((second,), read, canonically, declared=json_objects)


TARGETS = (Target("audit-records", "json", _open_audit, 0.5),)
