from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.shm import layout


@given(st.integers(1, 1 << 40))
def test_a_slot_holds_header_payload_and_trailer_without_overlap(length: int) -> None:
    trailer = layout.trailer_offset(length)
    assert trailer >= layout.SLOT_HEADER_BYTES + length
    assert trailer % 8 == 0
    assert trailer + layout.TRAILER.size <= layout.slot_bytes(length) < length + 192
    assert layout.slot_bytes(length) % layout.ALIGNMENT == 0


@given(st.binary(min_size=1, max_size=3000), st.data())
def test_up_to_16_kb_one_changed_byte_changes_the_checksum(
    payload: bytes, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(payload) - 1))
    flip = data.draw(st.integers(1, 255))
    changed = bytearray(payload)
    changed[at] ^= flip
    assert layout.checksum(bytes(changed)) != layout.checksum(payload)


@given(st.integers(20_000, 300_000), st.integers(0, 5), st.data())
def test_a_changed_run_as_long_as_a_stride_changes_the_checksum(
    length: int, seed: int, data: st.DataObject
) -> None:
    payload = np.random.default_rng(seed).bytes(length)
    run = 8 * (layout.stride(length) + 1)
    at = data.draw(st.integers(0, length - run))
    changed = np.frombuffer(payload, dtype=np.uint8).copy()
    changed[at : at + run] ^= 0xFF
    assert layout.checksum(changed.tobytes()) != layout.checksum(payload)


@given(st.integers(1, 100_000))
def test_zeros_of_different_length_have_different_checksums(length: int) -> None:
    assert layout.checksum(bytes(length)) != layout.checksum(bytes(length + 1))


@pytest.mark.parametrize("length", [8, 16_384, 65_536, 1_638_400, 8 << 20, 64 << 20])
def test_samples_are_few_and_no_page_is_without_one(length: int) -> None:
    stride = layout.stride(length)
    assert stride % 2 == 1  # tensors like powers of two
    assert 8 * stride < 4096
    assert length // 8 // stride <= max(2 * layout.SAMPLES, length // 4096 * 1.01)
