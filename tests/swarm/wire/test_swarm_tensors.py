"""Tensors on the wire: bit for bit there and back, without copies, within limits."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from messages_strategies import same, tensor_maps

from swarm.errors import DecodeError, InvalidArgument
from swarm.wire.maps import ZERO_COPY_FROM, unpack_map
from swarm.wire.tensors import (
    DTYPES,
    Claimed,
    MessageLimits,
    claim_prefix,
    datatype_of,
    decode_tensors,
    encode_tensors,
)

MIB = 1 << 20


def packed(tensors: dict[str, np.ndarray]) -> bytes:
    return b"".join(encode_tensors(tensors))


def unpacked(data: bytes, padding: int = 0) -> dict[str, Any]:
    size = padding.to_bytes(4, "big")
    doc = unpack_map(b"\x82\xa1p\xc6" + size + b"\0" * padding + b"\xa1t" + data, 64 * MIB)
    return decode_tensors(doc["t"])


@settings(deadline=None)
@given(tensor_maps)
def test_tensors_come_back_bit_for_bit_on_both_paths(tensors: dict[str, np.ndarray]) -> None:
    for padding in (0, ZERO_COPY_FROM):
        back = unpacked(packed(tensors), padding)
        assert list(back) == list(tensors)
        for name, array in tensors.items():
            assert same(array, back[name])


@pytest.mark.parametrize("datatype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (2, 3), (1,) * 16])
def test_every_datatype_travels_in_every_kind_of_shape(
    datatype: str, shape: tuple[int, ...]
) -> None:
    count = int(np.prod(shape))
    array = np.arange(count).astype(DTYPES[datatype]).reshape(shape)
    assert datatype_of(array) == datatype
    assert same(array, unpacked(packed({"x": array}))["x"])


def test_arrays_in_any_memory_order_arrive_in_c_order() -> None:
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for array in (base.T, base[:, ::2], base[::-1], np.asfortranarray(base), base[1, 2, 3]):
        assert same(np.array(array, order="C"), unpacked(packed({"x": array}))["x"])


def test_big_endian_arrays_arrive_with_the_same_values() -> None:
    array = np.array([1.5, -2.25], dtype=">f8")
    back = unpacked(packed({"x": array}))["x"]
    assert back.dtype == np.dtype("<f8")
    assert back.tolist() == [1.5, -2.25]


@pytest.mark.parametrize("dtype", ["c8", "O", "U3", "S3", "M8[s]", "f16", [("a", "f4")]])
def test_a_dtype_without_a_datatype_is_refused_by_name(dtype: Any) -> None:
    with pytest.raises(InvalidArgument, match="no datatype on the wire"):
        encode_tensors({"x": np.zeros(2, dtype)})


def test_encoding_copies_no_tensor() -> None:
    array = np.zeros(MIB, np.float32)
    parts = encode_tensors({"x": array})
    assert any(np.shares_memory(array, np.frombuffer(p, np.uint8)) for p in parts if len(p) > 99)


def test_decoding_a_large_message_copies_nothing_and_is_read_only() -> None:
    data = packed({"x": np.zeros(MIB, np.float32)})
    data = b"\x81\xa1t" + data
    tracemalloc.start()
    try:
        array = decode_tensors(unpack_map(data, 64 * MIB)["t"])["x"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    assert np.shares_memory(array, np.frombuffer(data, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def tensor(**changes: Any) -> dict[str, Any]:
    return {"x": {"datatype": "FP32", "shape": [2], "codec": "raw", "data": b"\0" * 8} | changes}


HUGE = 1 << 31


@pytest.mark.parametrize(
    ("doc", "says"),
    [
        (None, "must be a map"),
        ([], "must be a map"),
        ({"x": None}, "must be a map"),
        ({"": tensor()["x"]}, "name"),
        ({"n" * 513: tensor()["x"]}, "name"),
        ({7: tensor()["x"]}, "name"),
        ({str(n): tensor()["x"] for n in range(257)}, "at most 256"),
        (tensor(datatype="FP8"), "datatype must be one of"),
        (tensor(datatype=None), "datatype must be one of"),
        (tensor(datatype=[1]), "datatype must be one of"),
        (tensor(shape=None), "shape must be a list"),
        (tensor(shape=[1] * 17), "at most 16"),
        (tensor(shape=[-1]), "no dimension"),
        (tensor(shape=[HUGE + 1]), "no dimension"),
        (tensor(shape=[True, 2]), "no dimension"),
        (tensor(shape=[2.0]), "no dimension"),
        (tensor(shape=["x" * 100_000]), "no dimension"),
        (tensor(shape=[3]), "8 bytes of data where shape"),
        (tensor(shape=[]), "8 bytes of data where shape"),
        (tensor(shape=[HUGE] * 16), "8 bytes of data"),
        (tensor(shape=[0, HUGE, HUGE, HUGE], data=b""), "too large"),
        (tensor(codec="zip"), "codec 'zip' is not known"),
        (tensor(codec=None), "codec None"),
        (tensor(codec="x" * 100_000), "codec"),
        (tensor(data="12345678"), "data must be bytes"),
        (tensor(data=None), "data must be bytes"),
    ],
)
def test_a_broken_tensor_is_refused_in_a_short_text_that_says_what_is_wrong(
    doc: Any, says: str
) -> None:
    with pytest.raises(DecodeError, match=says) as refusal:
        decode_tensors(doc)
    assert len(str(refusal.value)) < 800


def test_limits_hold_as_they_are_given() -> None:
    limits = MessageLimits(tensors=1, rank=1, dimension=2, name=1)
    assert same(decode_tensors(tensor(), limits)["x"], np.zeros(2, np.float32))
    for doc in (
        tensor() | {"y": tensor()["x"]},
        {"xy": tensor()["x"]},
        tensor(shape=[1, 2]),
        tensor(shape=[3], data=b"\0" * 12),
    ):
        with pytest.raises(DecodeError):
            decode_tensors(doc, limits)


def test_a_tensor_that_claims_gigabytes_is_refused_without_allocating_them() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decode_tensors(tensor(shape=[HUGE, 4]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_claims_on_shared_memory_arrive_as_claims() -> None:
    data = {"name": "n", "at": 4096}
    packed = b"\x81" + claim_prefix("x", DTYPES["FP16"], (2, 3)) + msgpack.packb(data)
    doc = unpack_map(b"\x81\xa1t" + packed, MIB)["t"]
    assert decode_tensors(doc) == {"x": Claimed(DTYPES["FP16"], (2, 3), 12, data)}
