from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import swarm.samehost.memory
from swarm.samehost.memory import Claim, ClaimError, ClaimReader, slots
from swarm.samehost.memory.claim import VERSION, checked_mesh, mesh_of, segment_name

GOOD = Claim("0123456789abcdef", "swarm-m-7-0123456789abcdef", 4096, 5, 8, 2**64 - 1, 3)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def test_the_package_offers_this_and_no_more() -> None:
    assert swarm.samehost.memory.__all__ == [
        "MIN_BYTES",
        "SHM_DIRECTORY",
        "Claim",
        "ClaimError",
        "ClaimReader",
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
    sequence=st.integers(0, (1 << 63) - 1).map(lambda number: number * 2),
    checksum=st.integers(0, (1 << 64) - 1),
    word=st.integers(0, slots.DONE_WORDS - 1),
)
def test_a_claim_survives_the_wire_in_small_messages_and_in_large_ones(
    offset: int, length: int, sequence: int, checksum: int, word: int
) -> None:
    claim = Claim(GOOD.host, GOOD.segment, offset, length, sequence, checksum, word)
    wire = claim.to_wire()
    assert len(wire) < 100
    assert Claim.from_wire(msgpack.unpackb(msgpack.packb(wire))) == claim
    assert Claim.from_wire(memoryview(bytearray(wire))) == claim


@given(anything)
def test_whatever_is_no_claim_is_refused_with_a_claim_error(value: Any) -> None:
    with pytest.raises(ClaimError):
        Claim.from_wire(value)


@given(st.integers(0, len(GOOD.to_wire()) - 1), st.integers(1, 255))
def test_one_changed_byte_gives_a_claim_error_or_a_claim_within_bounds(at: int, flip: int) -> None:
    changed = bytearray(GOOD.to_wire())
    changed[at] ^= flip
    within_bounds(bytes(changed))


def within_bounds(value: bytes) -> None:
    try:
        claim = Claim.from_wire(value)
    except ClaimError:
        return
    assert 0 <= claim.offset < 1 << 47
    assert 1 <= claim.length < 1 << 47
    assert 0 <= claim.word < slots.DONE_WORDS
    assert claim.offset % 64 == claim.sequence % 2 == 0
    assert len(claim.host) == 16
    assert claim.segment.isascii()


@pytest.mark.parametrize(
    "segment",
    [
        "..",
        "../etc/passwd",
        "swarm-m-7-0123456789abcdef/../x",
        "swarm-../x-7-0123456789abcdef",
        "swarm-m-7-0123456789abcdef\n",
        "swarm-m-7-0123456789abcde",
        "swarm-m-7-0123456789ABCDEF",
        "swarm-m\0-7-0123456789abcdef",
        "psm_1234",
    ],
)
def test_a_claim_opens_nothing_but_segments(segment: str) -> None:
    host = swarm.samehost.memory.host_id()
    claim = Claim.from_wire(GOOD._replace(host=host, segment=segment).to_wire())
    reader = ClaimReader("m")
    with pytest.raises(ClaimError, match="segment"):
        reader.open(claim)
    assert not reader.check(claim)
    assert not reader.done(claim)


@pytest.mark.parametrize("wire", [GOOD.to_wire()[:48], GOOD.to_wire() + b"x" * 200, b"", b"x"])
def test_a_claim_without_a_segment_or_with_too_much_is_refused(wire: bytes) -> None:
    with pytest.raises(ClaimError, match="bytes and a segment"):
        Claim.from_wire(wire)


@pytest.mark.parametrize("version", [0, 1, 2, VERSION + 1, 65535])
def test_a_claim_of_another_version_is_refused(version: int) -> None:
    with pytest.raises(ClaimError, match=f"version {version}"):
        Claim.from_wire(version.to_bytes(2, "little") + GOOD.to_wire()[2:])


@pytest.mark.parametrize(
    "fields",
    [
        {"word": slots.DONE_WORDS},
        {"offset": 4097},
        {"offset": 1 << 47},
        {"length": 0},
        {"length": 1 << 63},
        {"sequence": 9},
    ],
)
def test_a_number_out_of_bounds_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ClaimError, match="numbers"):
        Claim.from_wire(GOOD._replace(**fields).to_wire())  # type: ignore[arg-type]


@given(st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True), st.integers(0, 4194304))
def test_a_segment_belongs_to_exactly_the_mesh_that_named_it(mesh: str, process: int) -> None:
    assert mesh_of(segment_name(checked_mesh(mesh), process)) == mesh


@pytest.mark.parametrize("mesh", ["", "a/b", "a.b", "a b", "x" * 65, ".."])
def test_a_mesh_name_that_does_not_fit_a_file_name_is_refused(mesh: str) -> None:
    with pytest.raises(ValueError, match="mesh name"):
        checked_mesh(mesh)
