"""A record that is removed, altered or moved is found, whichever it is."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.errors import DecodeError
from swarm.records.chain import MOST_DOUBTS, Extent, verify
from swarm.records.record import (
    BEGINNING,
    RecordEntry,
    agent_token,
    canonical,
    digest_of,
    hash_of,
    parse,
    seal,
)

Record = tuple[int, bytes]


def chains(counts: list[int], first: int = 1) -> list[Record]:
    """Records of several recorders, one after the other in turns, numbered from `first` on."""
    heads = {f"node-{n}": (0, BEGINNING) for n in range(len(counts))}
    made: list[Record] = []
    for turn in range(max(counts)):
        for number, count in enumerate(counts):
            if turn >= count:
                continue
            name = f"node-{number}"
            sequence, prev = heads[name]
            entry = RecordEntry(
                "request", "robot", 1.5e9 + turn, f"{name}-{turn}", {"status": "OK"}
            )
            data, digest = seal(entry, name, sequence + 1, prev)
            heads[name] = (sequence + 1, digest)
            made.append((first + len(made), data))
    return made


def whole(records: list[Record]) -> Extent:
    return Extent(records[0][0], records[-1][0])


def rewritten(record: Record, **changes: object) -> Record:
    """A record with other fields and a hash that is right for them."""
    doc = json.loads(record[1]) | changes
    doc["hash"] = hash_of(doc)
    return record[0], canonical(doc)


counts = st.lists(st.integers(1, 6), min_size=1, max_size=3)


@given(counts)
@settings(max_examples=30)
def test_records_as_they_were_written_are_good(count: list[int]) -> None:
    records = chains(count)
    verdict = verify(records, whole(records))
    assert verdict.good
    assert verdict.records == sum(count)
    assert {name: head[0] for name, head in verdict.heads.items()} == {
        f"node-{n}": c for n, c in enumerate(count)
    }


@given(counts, st.data())
@settings(max_examples=60)
def test_a_record_that_is_removed_is_found_wherever_it_stood(
    count: list[int], data: st.DataObject
) -> None:
    records = chains(count)
    at = data.draw(st.integers(0, len(records) - 1))
    verdict = verify(records[:at] + records[at + 1 :], whole(records))
    assert {fault.kind for fault in verdict.faults} == {"removed"}


@given(counts, st.data())
@settings(max_examples=60)
def test_a_record_that_is_removed_is_found_even_where_the_others_were_numbered_anew(
    count: list[int], data: st.DataObject
) -> None:
    records = chains(count)
    heads = verify(records, whole(records)).heads
    at = data.draw(st.integers(0, len(records) - 1))
    left = [bytes_ for _, bytes_ in records[:at] + records[at + 1 :]]
    again = list(enumerate(left, start=1))
    assert not verify(again, Extent(1, len(again)), heads).good


@given(counts, st.data())
@settings(max_examples=60)
def test_an_altered_record_is_found_also_where_its_hash_was_made_to_fit(
    count: list[int], data: st.DataObject
) -> None:
    records = chains(count)
    heads = verify(records, whole(records)).heads
    at = data.draw(st.integers(0, len(records) - 1))
    place, original = records[at]
    sloppy = original.replace(b'"OK"', b'"XX"')
    for forged in ((place, sloppy), rewritten(records[at], status="INTERNAL")):
        changed = [*records[:at], forged, *records[at + 1 :]]
        kinds = {fault.kind for fault in verify(changed, whole(records), heads).faults}
        assert "altered" in kinds


@given(counts.filter(lambda c: max(c) > 1), st.data())
@settings(max_examples=60)
def test_two_records_that_changed_places_are_found(count: list[int], data: st.DataObject) -> None:
    records = chains(count)
    longest = f"node-{count.index(max(count))}"
    own = [at for at, (_, raw) in enumerate(records) if json.loads(raw)["recorder"] == longest]
    one, other = sorted(data.draw(st.permutations(own))[:2])
    places = [place for place, _ in records]
    moved = [raw for _, raw in records]
    moved[one], moved[other] = moved[other], moved[one]
    verdict = verify(zip(places, moved, strict=True), whole(records))
    assert not verdict.good


def test_records_past_the_streams_limits_are_no_fault() -> None:
    records = chains([5, 3])
    verdict = verify(records[3:], Extent(4, records[-1][0]))
    assert verdict.good
    assert sorted(verdict.older) == ["node-0", "node-1"]


def test_a_stream_that_ends_before_what_a_living_node_has_stored_was_cut() -> None:
    records = chains([4])
    heads = verify(records, whole(records)).heads
    cut = verify(records[:3], Extent(1, 3), heads)
    assert [fault.kind for fault in cut.faults] == ["removed"]
    empty = verify([], Extent(1, 0), heads)
    assert [fault.kind for fault in empty.faults] == ["removed"]


def test_a_record_whose_place_in_the_stream_was_doubtful_may_be_another_recorders() -> None:
    first, head = seal(RecordEntry("request", "a", 1.0, "r1"), "n", 1, BEGINNING)
    second, next_head = seal(RecordEntry("request", "a", 1.0, "r2"), "n", 2, head)
    third, _ = seal(RecordEntry("request", "a", 1.0, "r3"), "n", 3, next_head, **{"or": head})
    assert verify([(1, first), (2, second), (3, third)], Extent(1, 3)).good
    assert verify([(1, first), (2, third)], Extent(1, 2)).good
    plain, _ = seal(RecordEntry("request", "a", 1.0, "r3"), "n", 3, next_head)
    assert not verify([(1, first), (2, plain)], Extent(1, 2)).good


@given(st.lists(st.booleans(), min_size=1, max_size=MOST_DOUBTS))
def test_of_records_in_a_row_that_were_doubtful_any_may_be_missing(
    stored: list[bool],
) -> None:
    """As a recorder writes them: the last one was stored for sure."""
    first, head = seal(RecordEntry("request", "a", 1.0, "r1"), "n", 1, BEGINNING)
    kept, others = [first], list[str]()
    for number, is_stored in enumerate([*stored, True], 2):
        more = {"or": " ".join(others)} if others else {}
        data, digest = seal(
            RecordEntry("request", "a", 1.0, f"r{number}"), "n", number, head, **more
        )
        others, head = [head, *others][:MOST_DOUBTS], digest
        if is_stored:
            kept.append(data)
    records = list(enumerate(kept, 1))
    extent = Extent(1, len(records))
    assert verify(records, extent).good
    # A record that nobody doubted is missed all the same.
    last = 2 + len(stored) + 2
    after, _ = seal(RecordEntry("request", "a", 1.0, "later"), "n", last, "0" * 63 + "1")
    faults = verify([*records, (len(records) + 1, after)], Extent(1, len(records) + 1)).faults
    assert [fault.kind for fault in faults] == ["removed"]


@given(st.binary(max_size=200))
def test_what_is_no_record_is_refused_and_stops_nothing(data: bytes) -> None:
    with pytest.raises(DecodeError):
        parse(data)
    assert [each.kind for each in verify([(1, data)], Extent(1, 1)).foreign] == ["unreadable"]


def test_a_record_in_another_form_is_refused() -> None:
    data, _ = seal(RecordEntry("request", "a", 1.0, "r"), "n", 1, BEGINNING)
    assert parse(data)["recorder"] == "n"
    with pytest.raises(DecodeError):
        parse(data.replace(b":", b": ", 1))


def test_a_hash_of_tensors_depends_on_names_datatypes_shapes_and_values_only() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    base = digest_of({"a": x, "b": x})
    assert digest_of({"b": x.copy(), "a": np.asfortranarray(x)}) == base
    others = [
        {"a": x, "c": x},
        {"a": x, "b": x.reshape(3, 2)},
        {"a": x, "b": x.astype(np.float64)},
        {"a": x, "b": x + 1},
        {"a": x},
    ]
    assert len({base, *map(digest_of, others)}) == len(others) + 1
    assert digest_of({"s": np.float32(1.0).reshape(())}) != digest_of({"s": np.ones(1, "f4")})


@pytest.mark.parametrize(
    ("agent", "named"),
    [("robot-7", "robot-7"), ("", "-"), ("a.b >", "a_b__"), ("operator", "operator_")],
)
def test_an_agents_name_addresses_no_other_subject_and_no_operator(agent: str, named: str) -> None:
    assert agent_token(agent) == named


# --- what belongs to no chain ------------------------------------------------------------------


def heads_of(records: list[Record]) -> dict[str, tuple[int, str]]:
    return verify(records, whole(records)).heads


def inserted(records: list[Record], at: int, data: bytes) -> list[Record]:
    """The records with a message between them, all numbered in their order."""
    stored = [record[1] for record in records]
    return list(enumerate([*stored[:at], data, *stored[at:]], 1))


def rubbish(kind: str, records: list[Record], at: int) -> bytes:
    """A message that stands for none of the records."""
    doc = json.loads(records[at % len(records)][1])
    if kind == "no record":
        return b"rubbish"
    if kind == "an empty one":
        return b"{}"
    if kind == "a copy":
        return records[at % len(records)][1]
    if kind == "another hash":
        return canonical(doc | {"agent": "somebody", "hash": "0" * 64})
    jump = doc | {"sequence": doc["sequence"] + 500, "prev": "1" * 64}
    return canonical(jump | {"hash": hash_of(jump)})


KINDS = ["no record", "an empty one", "a copy", "another hash", "a jump"]


@given(st.lists(st.integers(2, 6), min_size=1, max_size=3), st.data())
@settings(max_examples=150)
def test_rubbish_that_anybody_stored_is_told_of_and_makes_no_good_stream_bad(
    count: list[int], data: st.DataObject
) -> None:
    """It stays as long as the limits keep it: verifying would fail until then."""
    records = chains(count)
    kind = data.draw(st.sampled_from(KINDS))
    at = data.draw(st.integers(0, len(records) - 1))
    first = at + 1 if kind == "a copy" else 0  # there is something to copy
    place = data.draw(st.integers(first, at if kind == "a jump" else len(records)))
    found = inserted(records, place, rubbish(kind, records, at))
    verdict = verify(found, whole(found), heads_of(records))
    assert verdict.faults == []
    assert [each.place for each in verdict.foreign] == [place + 1]
    assert verdict.heads == heads_of(records)


@given(counts, st.data(), st.sampled_from(KINDS))
@settings(max_examples=150)
def test_a_record_that_rubbish_has_replaced_is_missed_wherever_it_stood(
    count: list[int], data: st.DataObject, kind: str
) -> None:
    records = chains(count)
    at = data.draw(st.integers(0, len(records) - 1))
    other = data.draw(st.integers(0, len(records) - 1))
    replaced = [*records]
    replaced[at] = (records[at][0], rubbish(kind, records, other))
    if replaced != records:
        assert not verify(replaced, whole(records), heads_of(records)).good


def test_another_history_of_a_record_is_no_rubbish() -> None:
    """It has its own hash, and follows the records before: somebody has made it for them."""
    records = chains([4])
    forged = rewritten(records[2], status="UNAVAILABLE")
    for at in range(3, 5):
        found = inserted(records, at, forged[1])
        assert not verify(found, whole(found), heads_of(records)).good


def test_a_stream_says_where_it_begins_and_what_its_limits_do_not_explain_is_a_fault() -> None:
    records = chains([10])[7:]
    explained = verify(records, Extent(8, 10, "2026-01-02T03:04:05Z"))
    assert (explained.good, explained.first) == (True, 8)
    assert explained.since == "2026-01-02T03:04:05Z"
    purged = verify(records, Extent(8, 10, "2026-01-02T03:04:05Z", by_limits=False))
    (fault,) = purged.faults
    assert (fault.kind, fault.place) == ("removed", 1)
    assert "messages 1 to 7" in fault.text
    nothing = verify([], Extent(11, 10, by_limits=False))
    assert [fault.kind for fault in nothing.faults] == ["removed"]
