"""Hops, as maps and packed: there and back, with the fields of versions to come."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from messages_strategies import documents

from swarm.errors import DecodeError
from swarm.wire.hops import DEEPEST, NAMED, Hop, is_hop, pack_hop, unpack_hops
from swarm.wire.messages import Result

HOP = {"stage": 1, "node": "n", "queue_us": 5, "compute_us": 7, "batch": 2}

plain_hops = st.fixed_dictionaries(
    {
        "stage": st.integers(0, 2**16 - 1),
        "node": st.text(st.characters(codec="ascii"), max_size=255),
        "queue_us": st.integers(0, 2**32 - 1),
        "compute_us": st.integers(0, 2**32 - 1),
        "batch": st.integers(0, 2**16 - 1),
    }
)
extras = st.dictionaries(
    st.text(min_size=1, max_size=12).map("new_".__add__),
    st.one_of(st.integers(-(2**63), 2**64 - 1), st.text(max_size=20), st.binary(max_size=20)),
    max_size=4,
)


@given(st.lists(st.tuples(plain_hops, extras), max_size=5))
def test_hops_come_back_packed_and_as_maps_with_the_fields_that_nobody_knows_yet(
    hops: list[tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    docs = [hop | extra for hop, extra in hops]
    back = unpack_hops(b"".join(map(pack_hop, docs)))
    assert [hop.as_doc() for hop in back] == docs
    assert back == [Hop.from_doc(doc) for doc in docs]
    assert [hop.extra for hop in back] == [extra for _, extra in hops]


def test_a_packed_hop_has_the_documented_form() -> None:
    record = struct.pack("<HHHIIB", 14, 1, 2, 5, 7, 1) + b"n"
    assert pack_hop(HOP) == record
    named = b"\x92\xa1w\x03"  # ["w", 3]
    longer = struct.pack("<HHHIIB", 20, 1, 2, 5, 7, 1) + b"n" + bytes((NAMED, 4)) + named
    assert pack_hop(HOP | {"w": 3}) == longer


@given(plain_hops, st.lists(st.tuples(st.integers(1, 255), st.binary(max_size=255)), max_size=6))
def test_a_reader_skips_fields_whose_tag_it_does_not_know(
    hop: dict[str, Any], fields: list[tuple[int, bytes]]
) -> None:
    """The record of a later version, between two of this one."""
    record = pack_hop(hop)
    later = b"".join(bytes((tag, len(data))) + data for tag, data in fields)
    longer = struct.pack("<H", len(record) - 2 + len(later)) + record[2:] + later
    expected = Hop.from_doc(hop)
    assert unpack_hops(record + longer + record) == [expected] * 3


def test_a_map_without_a_batch_is_a_hop_of_one_request() -> None:
    doc = {key: value for key, value in HOP.items() if key != "batch"} | {"later": 1}
    assert Hop.from_doc(doc) == Hop(1, "n", 5, 7, 1, {"later": 1})
    assert unpack_hops(pack_hop(doc)) == [Hop(1, "n", 5, 7, 1, {"later": 1})]


def deep(levels: int) -> list[Any]:
    return [deep(levels - 1)] if levels > 1 else []


def test_json_shows_the_unknown_fields_that_it_can_say() -> None:
    more: dict[Any, Any] = {
        "a": 1,
        "b": "x",
        "c": 0.5,
        "d": b"raw",
        "e": float("nan"),
        "f": [1, {"x": "y"}],
        "g": None,
        b"h": 1,
        "i": [1, {"x": b"raw"}],
        "j": {"x": [float("inf")]},
        "k": {b"x": 1},
        "l": deep(DEEPEST + 1),
        "m": deep(DEEPEST),
    }
    shown = {"a": 1, "b": "x", "c": 0.5, "f": [1, {"x": "y"}], "g": None, "m": deep(DEEPEST)}
    assert Hop.from_doc(HOP | more).as_json() == HOP | shown


def test_a_hop_of_known_fields_has_no_others() -> None:
    assert Hop.from_doc(HOP).extra == {}
    assert Hop.from_doc(HOP).as_doc() == HOP


@pytest.mark.parametrize(
    "change",
    [
        {"node": "ö"},
        {"node": "n" * 256},
        {"stage": -1},
        {"stage": 1 << 16},
        {"queue_us": -1},
        {"later": "x" * 255},
        {"later": Ellipsis},
        {"later": 1 << 64},
        {7: "no name"},
    ],
    ids=str,
)
def test_a_hop_that_does_not_fit_the_packed_form_is_refused(change: dict[Any, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        pack_hop(HOP | change)


@pytest.mark.parametrize(
    "field", [b"", b"\xc1", b"\x91\x01", b"\x92\x01\x01", b"\x92\xa5stage\x01", b"\xa1w"]
)
def test_a_named_field_that_is_no_name_with_a_value_is_refused(field: bytes) -> None:
    fields = bytes((NAMED, len(field))) + field
    record = pack_hop(HOP)
    with pytest.raises(DecodeError, match="field"):
        unpack_hops(struct.pack("<H", len(record) - 2 + len(fields)) + record[2:] + fields)


def test_truncated_records_are_refused() -> None:
    whole = pack_hop(HOP | {"later": 1})
    for end in range(1, len(whole)):
        with pytest.raises(DecodeError):
            unpack_hops(whole[:end])
    assert unpack_hops(b"") == []


@given(documents)
def test_whatever_is_no_hop_is_refused(doc: Any) -> None:
    if not is_hop(doc):
        with pytest.raises(DecodeError):
            Hop.from_doc(doc)


@given(plain_hops, extras, st.integers(0, 2**53 - 1))
def test_a_hop_names_the_weights_that_it_computed_with(
    hop: dict[str, Any], extra: dict[str, Any], weights: int
) -> None:
    doc = hop | extra | ({"weights": weights} if weights else {})
    [back] = unpack_hops(pack_hop(doc))
    assert (back.weights, back.extra) == (weights, extra)
    assert back.as_doc() == doc
    assert back == Hop.from_doc(doc)


@pytest.mark.parametrize("value", [-1, 0, 2**53, "7", 1.5, True, None, [1]])
def test_what_is_no_weight_version_counts_as_the_bases(value: Any) -> None:
    doc = HOP | {"weights": value}
    assert Hop.from_doc(doc).weights == 0
    assert unpack_hops(pack_hop(doc))[0].weights == 0


@given(st.lists(documents | st.dictionaries(st.text(max_size=9), st.text(max_size=9)), max_size=3))
def test_an_answer_names_the_parts_that_it_does_without_whatever_hops_say(said: list[Any]) -> None:
    hops = [Hop.from_doc(HOP | {"left_out": each}) for each in said]
    left_out = Result("1", hops=tuple(hops)).left_out
    assert all(isinstance(each, str) for item in left_out.items() for each in item)
    assert left_out.keys() == {
        str(name) for each in said if isinstance(each, dict) for name in each
    }
