from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import swarm.shm
from swarm.shm import Claim, ClaimError, layout
from swarm.shm.claim import checked_mesh, mesh_of, segment_name

GOOD = Claim("0123456789abcdef", "swarm-m-7-0123456789abcdef", 4096, 5, 8, 2**64 - 1, 3).to_wire()

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def test_the_package_offers_this_and_no_more() -> None:
    assert swarm.shm.__all__ == [
        "MIN_BYTES",
        "Claim",
        "ClaimError",
        "Reader",
        "Ring",
        "RingStats",
        "ShmError",
        "ShmForeign",
        "ShmGone",
        "ShmStale",
        "ShmUnavailable",
        "host_id",
        "sweep",
        "unavailable",
    ]


@given(
    offset=st.integers(64, 1 << 40).map(lambda number: number * 64),
    length=st.integers(1, 1 << 46),
    generation=st.integers(0, (1 << 63) - 1).map(lambda number: number * 2),
    checksum=st.integers(0, (1 << 64) - 1),
    word=st.integers(0, layout.WORDS - 1),
)
def test_a_claim_survives_messagepack_and_json(
    offset: int, length: int, generation: int, checksum: int, word: int
) -> None:
    claim = Claim(GOOD["host"], GOOD["segment"], offset, length, generation, checksum, word)
    wire = claim.to_wire() | {"a later version's field": 1}
    packed = msgpack.packb(wire)
    assert len(packed) < 250
    assert Claim.from_wire(msgpack.unpackb(packed)) == claim
    assert Claim.from_wire(json.loads(json.dumps(wire))) == claim


@given(anything)
def test_whatever_is_no_claim_is_refused_with_a_claim_error(value: Any) -> None:
    with pytest.raises(ClaimError):
        Claim.from_wire(value)


@given(st.sampled_from(sorted(GOOD)), anything)
def test_one_wrong_field_gives_a_claim_error_or_a_claim_within_bounds(
    field: str, value: Any
) -> None:
    try:
        claim = Claim.from_wire(GOOD | {field: value})
    except ClaimError:
        return
    assert mesh_of(claim.segment) == "m"
    assert 0 <= claim.offset < 1 << 47
    assert 1 <= claim.length < 1 << 47
    assert 0 <= claim.word < layout.WORDS
    assert claim.offset % 64 == claim.generation % 2 == 0
    assert all(type(number) is int for number in (claim.offset, claim.length, claim.checksum))


@pytest.mark.parametrize(
    "segment",
    [
        "",
        "..",
        "../etc/passwd",
        "swarm-m-7-0123456789abcdef/../x",
        "swarm-../x-7-0123456789abcdef",
        "swarm-m-7-0123456789abcdef\n",
        "swarm-m-7-0123456789abcde",
        "swarm-m-7-0123456789ABCDEF",
        "swarm-m\0-7-0123456789abcdef",
        "psm_1234",
        "x" * 5000,
    ],
)
def test_a_claim_names_nothing_but_segments(segment: str) -> None:
    with pytest.raises(ClaimError):
        Claim.from_wire(GOOD | {"segment": segment})


@pytest.mark.parametrize(
    "fields",
    [
        {"v": 1},
        {"v": 3},
        {"word": -1},
        {"word": layout.WORDS},
        {"word": None},
        {"offset": 4097},
        {"offset": 1 << 47},
        {"offset": True},
        {"length": 0},
        {"length": 1 << 63},
        {"length": 5.0},
        {"generation": 9},
        {"generation": -2},
        {"checksum": 1 << 64},
        {"host": "0123456789ABCDEF"},
    ],
)
def test_a_number_out_of_bounds_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ClaimError):
        Claim.from_wire(GOOD | fields)


@given(st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True), st.integers(0, 4194304))
def test_a_segment_belongs_to_exactly_the_mesh_that_named_it(mesh: str, process: int) -> None:
    assert mesh_of(segment_name(checked_mesh(mesh), process)) == mesh


@pytest.mark.parametrize("mesh", ["", "a/b", "a.b", "a b", "x" * 65, ".."])
def test_a_mesh_name_that_does_not_fit_a_file_name_is_refused(mesh: str) -> None:
    with pytest.raises(ValueError, match="mesh name"):
        checked_mesh(mesh)
