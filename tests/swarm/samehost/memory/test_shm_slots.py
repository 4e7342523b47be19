from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from swarm.samehost.memory import slots


@given(st.integers(1, 1 << 40))
def test_a_slot_holds_header_payload_and_trailer_without_overlap(length: int) -> None:
    trailer = slots.trailer_offset(length)
    assert trailer >= slots.SLOT_HEADER_BYTES + length
    assert trailer % 8 == 0
    assert trailer + slots.TRAILER.size <= slots.slot_bytes(length) < length + 192
    assert slots.slot_bytes(length) % slots.ALIGNMENT == 0


@given(st.integers(20_000, 300_000), st.integers(0, 5), st.data())
def test_a_page_of_changed_bytes_changes_the_checksum(
    length: int, seed: int, data: st.DataObject
) -> None:
    payload = np.random.default_rng(seed).bytes(length)
    at = data.draw(st.integers(0, length - 4096))
    changed = np.frombuffer(payload, dtype=np.uint8).copy()
    changed[at : at + 4096] ^= 0xFF
    assert slots.checksum(changed.tobytes()) != slots.checksum(payload)


@given(st.binary(min_size=1, max_size=3000), st.integers(0, 7), st.integers(1, 255))
def test_one_changed_byte_at_the_end_changes_the_checksum(
    payload: bytes, from_end: int, flip: int
) -> None:
    changed = bytearray(payload)
    changed[max(0, len(payload) - 1 - from_end)] ^= flip
    assert slots.checksum(bytes(changed)) != slots.checksum(payload)


@given(st.integers(1, 100_000))
def test_zeros_of_different_length_have_different_checksums(length: int) -> None:
    assert slots.checksum(bytes(length)) != slots.checksum(bytes(length + 1))


def test_no_page_is_without_a_sample_whatever_the_tensors_dimensions() -> None:
    assert slots.SAMPLE_DISTANCE % 2 == 1  # dimensions are powers of two
    assert 8 * slots.SAMPLE_DISTANCE < 4096
