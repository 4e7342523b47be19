"""Codecs: how far a value may be off, what travels plain, and what a hostile message may do."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from swarm.errors import DecodeError
from swarm.wire import compression
from swarm.wire.codecs import BITS, CODECS, PER_CHANNEL_FROM, decode, encode
from swarm.wire.compression import compress
from swarm.wire.messages import Request
from swarm.wire.tensors import (
    CODED_FROM,
    DTYPES,
    Coding,
    MessageLimits,
    codec_of,
    decode_tensors,
    encode_coded,
    known_codecs,
    map_prefix,
)

finite = st.floats(-(2.0**100), 2.0**100, width=32)
tensors = arrays.arrays(np.float32, arrays.array_shapes(max_dims=4, max_side=7), elements=finite)


@given(tensors, st.sampled_from(sorted(BITS)))
def test_a_quantized_value_is_off_by_half_a_step_at_most(array: np.ndarray, codec: str) -> None:
    data = encode(array, codec)
    assert data is not None
    back = decode(data, codec, array.shape)
    assert (back.shape, back.dtype) == (array.shape, array.dtype)
    wide = array.astype(np.float64)
    step = (wide.max() - wide.min()) / ((1 << BITS[codec]) - 1)
    rounding = 4e-7 * np.abs(wide).max() + 1e-45  # of FP32, the numbers near 0 included
    assert np.abs(back - wide).max() <= step / 2 + rounding * (1 << BITS[codec])
    by_channel = array.ndim >= 3 and array.nbytes >= PER_CHANNEL_FROM
    channels = array.shape[1] if by_channel and array.size >= 64 * array.shape[1] else 1
    assert len(data) == 4 + 8 * channels + -(-array.size * BITS[codec] // 8)


@pytest.mark.parametrize(("codec", "ratio"), [("f16", 2.0), ("i8", 4.0), ("i6", 5.3), ("i4", 7.9)])
def test_large_features_shrink_and_each_channel_keeps_its_own_range(
    codec: str, ratio: float
) -> None:
    random = np.random.default_rng(3)
    features = random.random((1, 8, 48, 100), np.float32)
    features[:, 1] *= 1e-3  # lost, if all channels shared one range
    data = encode(features, codec)
    assert data is not None
    assert features.nbytes / len(data) >= ratio * 0.98
    back = decode(data, codec, features.shape)
    assert np.abs(back[:, 1] - features[:, 1]).max() < 1e-3 / 20
    assert np.abs(back - features).max() < 1 / 20


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "array",
    [
        np.array([1.0, np.nan], np.float32),
        np.array([1.0, np.inf], np.float32),
        np.zeros((0, 3), np.float32),
        np.array([1.0, 2.0], np.float64),
        np.array([1, 2], np.int64),
    ],
    ids=["nan", "infinity", "empty", "FP64", "INT64"],
)
def test_tensors_that_a_codec_cannot_say_travel_plain(codec: str, array: np.ndarray) -> None:
    assert encode(array, codec) is None


def test_a_value_that_no_half_holds_travels_plain() -> None:
    assert encode(np.array([1e5], np.float32), "f16") is None


everything_finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(
    arrays.arrays(np.float32, st.integers(1, 30), elements=everything_finite),
    st.sampled_from(sorted(BITS)),
)
def test_no_finite_value_comes_back_as_infinity(array: np.ndarray, codec: str) -> None:
    data = encode(array, codec)
    assert data is None or np.isfinite(decode(data, codec, array.shape)).all()


@pytest.mark.parametrize("codec", sorted(BITS))
def test_values_farther_apart_than_their_difference_can_be_travel_plain(codec: str) -> None:
    assert encode(np.array([-3.3e38, 3.3e38], np.float32), codec) is None


def coded(
    tensors: dict[str, np.ndarray], coding: Coding, exact: list[str] | None = None
) -> dict[str, Any]:
    """The tensors as a receiver unpacks them."""
    parts = [map_prefix(len(tensors)), *encode_coded(tensors, coding, exact)]
    doc: dict[str, Any] = msgpack.unpackb(b"".join(parts))
    return doc


def test_where_one_tensor_lost_nothing_the_codec_of_the_other_one_is_told() -> None:
    broken = np.full(2048, np.nan, np.float32)
    good = np.random.default_rng(2).random(2048, np.float32)
    exact: list[str] = []
    doc = coded({"a": broken, "b": good}, Coding("i8", True), exact)
    assert [doc[name]["codec"] for name in "ab"] == ["zstd", "i8"]
    assert codec_of(doc) == "i8"
    assert exact == ["a"]


@pytest.mark.parametrize("codec", CODECS)
def test_a_node_reads_coded_tensors_and_names_the_tensor_that_is_wrong(codec: str) -> None:
    array = np.linspace(-1, 1, 60, dtype=np.float32).reshape(1, 3, 20)
    data = encode(array, codec)
    assert data is not None
    doc = {"datatype": "FP32", "shape": [1, 3, 20], "codec": codec, "data": data}
    back = decode_tensors({"x": doc})["x"]
    assert np.abs(back - array).max() <= 2 / 15 / 2 + 1e-6
    for wrong, said in (
        ({"data": data[:-1]}, "bytes of data"),
        ({"shape": [1, 3, 21]}, "bytes of data"),
        ({"datatype": "INT64"}, "FP32"),
        ({"data": "text"}, "must be bytes"),
        ({"codec": "i5"}, "not known"),
    ):
        with pytest.raises(DecodeError, match=rf"tensor 'x'.*{said}"):
            decode_tensors({"x": doc | wrong})


def test_a_coded_tensor_larger_than_a_message_may_be_is_refused_before_it_is_decoded() -> None:
    data = encode(np.zeros(4096, np.float32), "i4")
    doc = {"datatype": "FP32", "shape": [4096], "codec": "i4", "data": data}
    with pytest.raises(DecodeError, match=r"tensor 'x'.*16384 bytes"):
        decode_tensors({"x": doc}, MessageLimits(bytes=8192))


@given(
    st.binary(max_size=64),
    st.sampled_from(CODECS),
    st.lists(st.integers(0, 1 << 20), max_size=4).map(tuple),
)
def test_bytes_that_nobody_encoded_decode_or_are_refused(
    data: bytes, codec: str, shape: tuple[int, ...]
) -> None:
    try:
        back = decode(data, codec, shape)
    except DecodeError:
        return
    assert back.shape == shape


def test_a_client_may_send_its_inputs_coded() -> None:
    image = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 1, 8, 8)
    coded = {"datatype": "FP32", "shape": [1, 1, 8, 8], "codec": "i8", "data": encode(image, "i8")}
    message: bytes = msgpack.packb({"v": 1, "tensors": {"image": coded}})
    inputs = Request.decode(message).inputs
    assert np.abs(inputs["image"] - image).max() <= 1 / 255 / 2 + 1e-6


CODINGS = [Coding(lossy, zstd) for lossy in ("", *CODECS) for zstd in (False, True)]


@given(tensors, st.sampled_from(CODINGS))
def test_every_coding_is_read_as_its_codec_alone_would_be(
    array: np.ndarray, coding: Coding
) -> None:
    array = np.tile(array.reshape(1, -1), (1, 40))
    doc = coded({"x": array}, coding)
    assert doc["x"]["codec"] in (coding.name, coding.lossy, "zstd", "raw")
    back = decode_tensors(doc)["x"]
    data = encode(array, coding.lossy) if coding.lossy and array.nbytes >= CODED_FROM else None
    expected = array if data is None else decode(data, coding.lossy, array.shape)
    assert np.array_equal(back, expected)


def test_compression_loses_nothing_of_any_datatype() -> None:
    for dtype in DTYPES.values():
        array = (np.arange(20_000) % 7).astype(dtype).reshape(4, 5000)
        doc = coded({"x": array}, Coding("i4", True))
        back = decode_tensors(doc)["x"]
        assert (back.dtype, back.shape) == (array.dtype, array.shape)
        if dtype != np.float32:
            assert doc["x"]["codec"] == "zstd"
            assert np.array_equal(back, array)
        else:
            assert codec_of(doc) == "i4-zstd"


def test_a_frame_that_says_another_size_is_refused_before_it_is_decompressed() -> None:
    bomb = compress(bytes(1 << 26))
    assert len(bomb) < 1 << 14
    for codec in ("zstd", "i8-zstd", "f16-zstd"):
        doc = {"datatype": "FP32", "shape": [16], "codec": codec, "data": bomb}
        with pytest.raises(DecodeError, match=r"tensor 'x'.*frame of 67108864 bytes"):
            decode_tensors({"x": doc})


@given(st.binary(max_size=64))
def test_bytes_that_nobody_compressed_are_refused(data: bytes) -> None:
    doc = {"datatype": "FP32", "shape": [4], "codec": "zstd", "data": data}
    with pytest.raises(DecodeError, match="tensor 'x'"):
        decode_tensors({"x": doc})


def test_a_process_without_the_library_says_that_it_does_not_know_zstd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compression, "is_installed", lambda: False)
    assert "zstd" not in known_codecs()
    doc = {"datatype": "FP32", "shape": [4], "codec": "zstd", "data": b"any"}
    with pytest.raises(DecodeError, match="install `zstandard`"):
        decode_tensors({"x": doc})
