"""Whether records are all there, unaltered, and in their order. Pure.

Three things tell of a record that is missing: the next record's `sequence` and `prev`; the numbers
that the stream gives to its messages, without a gap but at the old end, where the limits are; and
the heads, which living recorders tell in their statuses, and an export in its first line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from swarm.audit.record import BEGINNING, hash_of, parse
from swarm.errors import DecodeError

MOST_DOUBTS = 16  # records in a row of which a recorder does not know whether they were stored

Tell = Callable[[str, str], None]  # (kind, text) of a fault
Head = tuple[int, str]  # sequence and hash of a recorder's last record


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. kind: `removed`, `altered`, `reordered` or `unreadable`. place: the
    stream's number of the message, 0 where there is none."""

    kind: str
    place: int
    recorder: str
    text: str


@dataclass(slots=True)
class Verdict:
    """records: that were read. lost: that recorders themselves say they could not store. older:
    recorders whose first records are past the stream's limits."""

    records: int = 0
    lost: int = 0
    older: list[str] = field(default_factory=list)
    heads: dict[str, Head] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


@dataclass(frozen=True, slots=True)
class Extent:
    """The numbers of the first and the last message that a stream holds, or held last."""

    first: int
    last: int


def verify(
    records: Iterable[tuple[int, bytes]], extent: Extent, heads: Mapping[str, Head] | None = None
) -> Verdict:
    """Judge records, each with the stream's number, in the order in which they were read.

    extent: what the stream says that it holds. heads: what recorders, or an export, say that was
    stored last; a chain that ends before is cut, and one that goes on has grown since.
    """
    verdict, judge = Verdict(), _Judge({}, {})
    expected = extent.first
    for place, data in records:
        if place < expected:
            fault = Fault("reordered", place, "", f"message {place} comes behind {expected - 1}")
            verdict.faults.append(fault)
        elif place > expected:
            verdict.faults.append(_gap(expected, place - 1))
        expected = max(expected, place + 1)
        verdict.records += 1
        judge.take(place, data, extent, verdict)
    if expected <= extent.last:
        verdict.faults.append(_gap(expected, extent.last))
    verdict.heads = dict(judge.last)
    for recorder, (sequence, digest) in (heads or {}).items():
        _compare_head(recorder, sequence, digest, judge, verdict)
    return verdict


def _gap(first: int, last: int) -> Fault:
    which = f"message {first} is" if first == last else f"messages {first} to {last} are"
    return Fault("removed", first, "", f"{which} not in the stream any more")


@dataclass(slots=True)
class _Judge:
    """last: the head of each chain so far. hashes: of each chain, by sequence."""

    last: dict[str, Head]
    hashes: dict[tuple[str, int], str]

    def take(self, place: int, data: bytes, extent: Extent, verdict: Verdict) -> None:
        try:
            doc = parse(data)
        except DecodeError as error:
            verdict.faults.append(Fault("unreadable", place, "", str(error)))
            return
        recorder, sequence = doc["recorder"], doc["sequence"]

        def fault(kind: str, text: str) -> None:
            verdict.faults.append(Fault(kind, place, recorder, text))

        if doc["hash"] != hash_of(doc):
            fault("altered", f"record {sequence} does not have the hash that it names")
        lost = doc.get("lost", 0)
        verdict.lost += lost if type(lost) is int else 0
        before = self.last.get(recorder)
        if before is None:
            self._first(doc, extent, verdict, fault)
        elif sequence <= before[0]:
            fault("reordered", f"record {sequence} stands behind record {before[0]}")
            return
        elif not _follows(doc, before):
            if sequence == before[0] + 1:
                fault("altered", f"record {sequence} names another record before it")
            else:
                fault("removed", f"record {before[0] + 1} to {sequence - 1} are missing")
        self.last[recorder] = (sequence, doc["hash"])
        self.hashes[recorder, sequence] = doc["hash"]

    def _first(self, doc: Mapping[str, Any], extent: Extent, verdict: Verdict, fault: Tell) -> None:
        sequence, recorder = doc["sequence"], doc["recorder"]
        if sequence == 1:
            if doc["prev"] != BEGINNING:
                fault("altered", "record 1 names a record before it")
        elif extent.first > 1:
            verdict.older.append(recorder)  # the stream's limits remove the oldest
        elif not _follows(doc, (0, BEGINNING)):
            fault("removed", f"records 1 to {sequence - 1} are missing")


def _follows(doc: Mapping[str, object], before: Head) -> bool:
    """Whether this is the record behind `before`. Where the recorder could not learn whether the
    records between were stored, it names what each of them follows: `prev`, and in `or`, from the
    latest on, the hashes of the records before."""
    sequence, digest = before
    number = doc["sequence"]
    assert isinstance(number, int)
    if number == sequence + 1:
        return doc["prev"] == digest
    doubtful, other = number - sequence - 2, doc.get("or")
    hashes = other.split() if isinstance(other, str) else []
    return doubtful < min(len(hashes), MOST_DOUBTS) and hashes[doubtful] == digest


def _compare_head(
    recorder: str, sequence: int, digest: str, judge: _Judge, verdict: Verdict
) -> None:
    if not sequence:
        return
    known = judge.hashes.get((recorder, sequence))
    if known is None:
        last = judge.last.get(recorder, (0, ""))[0]
        if last < sequence:
            text = f"record {sequence} was stored; the last one here is {last}"
            verdict.faults.append(Fault("removed", 0, recorder, text))
    elif known != digest:
        text = f"record {sequence} is another one than was stored"
        verdict.faults.append(Fault("altered", 0, recorder, text))
