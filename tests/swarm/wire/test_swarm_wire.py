"""MessagePack in: what is accepted, what is refused, and what a refusal costs."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages_strategies import documents

from swarm.errors import DecodeError
from swarm.wire.maps import (
    ZERO_COPY_FROM,
    pack,
    pack_open_map,
    unpack_copied,
    unpack_map,
    unpack_viewed,
)

MIB = 1 << 20
maps = st.dictionaries(st.text(max_size=20), documents, max_size=6)


def plain(value: Any) -> Any:
    """A document with views as bytes and NaN as a word, to compare."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value


def padded(doc: dict[str, Any]) -> bytes:
    """`doc` as a message that takes the path of large ones."""
    return pack(doc | {"padding": b"\0" * ZERO_COPY_FROM})


@settings(deadline=None)
@given(maps)
def test_what_was_packed_is_unpacked_the_same_on_both_paths(doc: dict[str, Any]) -> None:
    small = unpack_map(pack(doc), MIB)
    large = unpack_map(padded(doc), MIB)
    del large["padding"]
    assert plain(small) == plain(large) == plain(doc | {})


@settings(deadline=None)
@given(maps, st.data())
def test_both_paths_agree_on_what_is_no_message(doc: dict[str, Any], data: st.DataObject) -> None:
    raw = bytearray(pack(doc))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    outcomes = []
    for path in (unpack_copied, unpack_viewed):
        try:
            outcomes.append(plain(path(bytes(raw))))
        except (ValueError, TypeError, DecodeError, msgpack.exceptions.UnpackException):
            outcomes.append("refused")
    # The parser in C also takes bytes as keys of inner maps, which nothing here looks up.
    if outcomes[1] != "refused" or outcomes[0] == "refused":
        assert outcomes[0] == outcomes[1]


@settings(max_examples=40, deadline=None)
@given(maps, st.integers(1, 3))
def test_an_open_map_takes_the_entries_that_follow_it(doc: dict[str, Any], extra: int) -> None:
    doc = {f"_{key}": value for key, value in doc.items()}
    tail = b"".join(b"\xa1%c\x07" % (ord("a") + n) for n in range(extra))
    whole = unpack_map(pack_open_map(doc, extra) + tail, MIB)
    assert plain(whole) == plain(doc) | {"abc"[n]: 7 for n in range(extra)}


def test_an_open_map_of_many_entries_is_whole_too() -> None:
    doc = {str(n): n for n in range(40)}
    assert unpack_map(pack_open_map(doc) + b"\xa1x\x01", MIB) == doc | {"x": 1}


@pytest.mark.parametrize(
    "claim",
    [
        b"\xc6\x06\x40\x00\x00",  # 100 MB of binary
        b"\xdb\x06\x40\x00\x00",  # of text
        b"\xdd\x06\x40\x00\x00",  # an array of 100 million
        b"\xdf\x06\x40\x00\x00",  # a map of 100 million
        b"\xc9\x06\x40\x00\x00\x01",  # an extension
    ],
)
@pytest.mark.parametrize("size", [1000, ZERO_COPY_FROM + 1000])
def test_a_claim_of_100_mb_is_refused_before_anything_is_allocated(claim: bytes, size: int) -> None:
    data = b"\x81\xa1a" + claim
    data += b"\0" * (size - len(data))
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            unpack_map(data, MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200_000


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a", b"\xdc\x00\x01"])
def test_deep_nesting_is_refused_and_never_exhausts_the_stack(opening: bytes) -> None:
    for depth in (2000, 30_000):
        with pytest.raises(DecodeError):
            unpack_map(b"\x81\xa1a" + opening * depth + b"\xc0", MIB)


def test_a_message_of_very_many_small_values_is_refused() -> None:
    rows = b"\xdc\x10\x00" + b"\xc0" * 4096
    data = b"\x81\xa1a" + b"\xdc\x10\x00" + rows * 4096
    assert len(data) > 16 * MIB
    with pytest.raises(DecodeError, match="items in all"):
        unpack_map(data, 64 * MIB)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x90", b"\xc0", b"\x01", b"\xa1a", b"\x80\x80", b"\x81\x01\x02", b"\x81\xc4\x01a\x01"],
)
def test_anything_else_than_one_map_with_text_keys_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        unpack_map(data, MIB)
    with pytest.raises(DecodeError):
        unpack_map(data + b"\0" * ZERO_COPY_FROM, MIB)


def test_extensions_are_refused_on_both_paths() -> None:
    for extension in (b"\xc7\x00\x05", b"\xc7\x00\xff", b"\xd6\xff\0\0\0\0", b"\xd4\x01\0"):
        with pytest.raises(DecodeError):
            unpack_map(b"\x81\xa1a" + extension, MIB)
        with pytest.raises(DecodeError):
            unpack_map(
                b"\x82\xa1p\xc6\0\1\0\0" + b"\0" * ZERO_COPY_FROM + b"\xa1a" + extension, MIB
            )


def test_the_byte_limit_is_checked_first() -> None:
    assert unpack_map(b"\x81\xa1a\x01", 4) == {"a": 1}
    with pytest.raises(DecodeError, match="at most 3"):
        unpack_map(b"\x81\xa1a\x01", 3)


def test_binary_values_of_a_large_message_are_views_of_it() -> None:
    data = padded({"a": b"xyz"})
    value = unpack_map(data, MIB)["padding"]
    assert isinstance(value, memoryview)
    assert value.obj is data
