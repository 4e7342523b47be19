"""Whether records are all there, unaltered, and in their order. Pure.

Three things tell of a record that is missing: the next record's `sequence` and `prev`; the numbers
that the stream gives to its messages, without a gap but at the old end, where the limits are; and
the heads, which living recorders tell in their statuses, and an export in its first line.

Whoever may write to the stream can store rubbish there, for ever. A message that belongs to no
chain is told of, and proves nothing: without it all records are there. One that may stand in a
record's place does: there that record is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from swarm.errors import DecodeError
from swarm.records.record import BEGINNING, hash_of, parse

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
class ChainVerdict:
    """records: that were read. lost: that recorders themselves say they could not store. older:
    recorders whose first records stood before the stream's beginning. first, since: the number of
    the first message, and when it was stored, "" where nobody knows. by_limits: of `Extent`.
    foreign: messages that belong to no chain."""

    records: int = 0
    lost: int = 0
    first: int = 1
    since: str = ""
    by_limits: bool = True
    foreign: list[Fault] = field(default_factory=list)
    older: list[str] = field(default_factory=list)
    heads: dict[str, Head] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.faults


@dataclass(frozen=True, slots=True)
class Extent:
    """The numbers of the first and the last message that a stream holds, or held last. since: when
    the first one was stored, "" where nobody knows. by_limits: whether the stream's limits may have
    removed those before it."""

    first: int
    last: int
    since: str = ""
    by_limits: bool = True


def verify(
    records: Iterable[tuple[int, bytes]], extent: Extent, heads: Mapping[str, Head] | None = None
) -> ChainVerdict:
    """Judge records, each with the stream's number, in the order in which they were read.

    extent: what the stream says that it holds. heads: what recorders, or an export, say that was
    stored last; a chain that ends before is cut, and one that goes on has grown since.
    """
    verdict = ChainVerdict(first=extent.first, since=extent.since, by_limits=extent.by_limits)
    if extent.first > 1 and not extent.by_limits:
        verdict.faults.append(_gap(1, extent.first - 1, ", and not by the limits that it has now"))
    read = [_Read.of(place, data) for place, data in records]
    judge = _Judge(_Known.of(read), {}, {})
    expected = extent.first
    for each in read:
        place = each.place
        if place < expected:
            fault = Fault("reordered", place, "", f"message {place} comes behind {expected - 1}")
            verdict.faults.append(fault)
        elif place > expected:
            verdict.faults.append(_gap(expected, place - 1))
        expected = max(expected, place + 1)
        verdict.records += 1
        judge.take(each, extent, verdict)
    if expected <= extent.last:
        verdict.faults.append(_gap(expected, extent.last))
    verdict.heads = dict(judge.last)
    for recorder, (sequence, digest) in (heads or {}).items():
        _compare_head(recorder, sequence, digest, judge, verdict)
    return verdict


def _gap(first: int, last: int, more: str = "") -> Fault:
    which = f"message {first} is" if first == last else f"messages {first} to {last} are"
    return Fault("removed", first, "", f"{which} not in the stream any more{more}")


@dataclass(frozen=True, slots=True)
class _Read:
    """A message as it was read. doc: None for what is no record, which `why` says. fits: whether
    the record has the hash that it names."""

    place: int
    doc: Mapping[str, Any] | None
    why: str
    fits: bool

    @classmethod
    def of(cls, place: int, data: bytes) -> _Read:
        try:
            doc = parse(data)
        except DecodeError as error:
            return cls(place, None, str(error), False)
        return cls(place, doc, "", doc["hash"] == hash_of(doc))


@dataclass(frozen=True, slots=True)
class _Known:
    """Of all records that have their own hash: sequences, by recorder; hashes, by recorder and
    sequence; and those that each chain names next, by recorder, sequence and the hash before."""

    sequences: Mapping[tuple[str, int], set[str]]
    next: set[tuple[str, int, str]]

    @classmethod
    def of(cls, read: Iterable[_Read]) -> _Known:
        sequences: dict[tuple[str, int], set[str]] = {}
        following = set()
        for each in read:
            if each.doc is None or not each.fits:
                continue
            place = each.doc["recorder"], each.doc["sequence"]
            sequences.setdefault(place, set()).add(each.doc["hash"])
            following.add((*place, each.doc["prev"]))
        return cls(sequences, following)

    def is_foreign(self, read: _Read, before: Head) -> str:
        """Why a record that does not follow `before` belongs to no chain, or ""."""
        assert read.doc is not None
        recorder, sequence = read.doc["recorder"], read.doc["sequence"]
        if not read.fits:
            there = (recorder, sequence) in self.sequences
            return f"record {sequence} is there besides, with the hash that it names" * there
        linked = read.doc["prev"] in self.sequences.get((recorder, sequence - 1), ())
        goes_on = (recorder, before[0] + 1, before[1]) in self.next
        if goes_on and not linked and sequence > 1:
            return f"no record {sequence - 1} is the one that it names, and its chain goes on"
        return ""


@dataclass(slots=True)
class _Judge:
    """last: the head of each chain so far. hashes: of each chain, by sequence."""

    known: _Known
    last: dict[str, Head]
    hashes: dict[tuple[str, int], str]

    def take(self, read: _Read, extent: Extent, verdict: ChainVerdict) -> None:
        place, doc = read.place, read.doc
        if doc is None:
            verdict.foreign.append(Fault("unreadable", place, "", read.why))
            return
        recorder, sequence = doc["recorder"], doc["sequence"]

        def fault(kind: str, text: str) -> None:
            verdict.faults.append(Fault(kind, place, recorder, text))

        if read.fits and self.hashes.get((recorder, sequence)) == doc["hash"]:
            text = f"record {sequence} once more"
            verdict.foreign.append(Fault("foreign", place, recorder, text))
            return
        if why := self.known.is_foreign(read, self.last.get(recorder, (0, BEGINNING))):
            verdict.foreign.append(Fault("foreign", place, recorder, why))
            return
        if not read.fits:
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

    def _first(
        self, doc: Mapping[str, Any], extent: Extent, verdict: ChainVerdict, fault: Tell
    ) -> None:
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
    recorder: str, sequence: int, digest: str, judge: _Judge, verdict: ChainVerdict
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
