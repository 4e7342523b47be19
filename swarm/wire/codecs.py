"""Codecs that make FP32 tensors smaller and lose little: `f16`, `i8`, `i6`, `i4`. Pure.

`f16`: IEEE 754 halves, 2 bytes a value. The others quantize each channel evenly between its least
and its greatest value (Jacob et al., "Quantization and Training of Neural Networks", CVPR 2018,
2.1, with the least value in place of the zero point):

    channels u32 | least f32 x channels | step f32 x channels | whole numbers of 8, 6 or 4 bits

All little-endian. The numbers are in C order, the first in the low bits of its byte, four numbers
of 6 bits in three bytes; the last byte is filled up with zeros. `channels` is 1, or dimension 1 of
the shape. A value is least + number x step, so it is off by half a step at most.
"""

from __future__ import annotations

import math

import numpy as np

from swarm.errors import DecodeError

BITS = {"i8": 8, "i6": 6, "i4": 4}
CODECS = ("f16", *BITS)  # by increasing loss
PER_CHANNEL_FROM = 4096
"""Bytes from which a tensor is quantized by channel: below, the channels' ranges outweigh it."""
LEAST_OF_CHANNEL = 64
"""Values that a channel has at least: a range takes eight bytes. (A list of boxes has four.)"""
_GROUPS = {6: 4, 4: 2}  # numbers that fill whole bytes, by bits
_FP32 = np.dtype("<f4")
_U32 = 4  # bytes
_SMALL, _LARGE = 1e-30, 1e30
"""Steps above, and spans below, have reciprocals and differences that FP32 holds."""
_MOST_SPAN = float(np.finfo(np.float32).max) / 2


def encode(array: np.ndarray, codec: str) -> bytes | None:
    """The array's bytes in a codec of `CODECS`; None where it travels plain.

    Plain are other dtypes than FP32, empty arrays, NaN and infinity, what no half can hold, and
    values so far apart that FP32 may not hold their difference: they would come back as infinity.
    Raises `KeyError` for an unknown codec.
    """
    if array.dtype != _FP32 or not array.size or not np.isfinite(array).all():
        return None
    if codec == "f16":
        if np.abs(array).max() > np.finfo(np.float16).max:
            return None
        halves: bytes = array.astype("<f2").tobytes()
        return halves
    bits, channels = BITS[codec], _channel_count(array)
    top = (1 << bits) - 1
    values = array.reshape(_by_channel(array.shape, channels))
    least = values.min(axis=(0, 2))
    span = values.max(axis=(0, 2)).astype(np.float64) - least
    if span.max() > _MOST_SPAN:
        return None
    step = (span / top).astype(_FP32)
    if step.min() > _SMALL and span.max() < _LARGE:
        # In FP32: half of the time.
        scaled = values - least[:, None]
        scaled *= (1 / step)[:, None]
    else:
        divisor = np.where(step > 0, step, 1).astype(np.float64)[:, None]
        scaled = (values.astype(np.float64) - least[:, None]) / divisor
    scaled += 0.5  # the cast cuts off: this rounds
    numbers = np.minimum(scaled, top, out=scaled).astype(np.uint8).reshape(-1)
    head = channels.to_bytes(_U32, "little") + least.tobytes() + step.tobytes()
    data: bytes = head + _pack(numbers, bits)
    return data


def sizes(codec: str, shape: tuple[int, ...]) -> frozenset[int]:
    """The numbers of bytes that data of this codec and shape may have. Raises `KeyError`."""
    elements = math.prod(shape)
    if codec == "f16":
        return frozenset({2 * elements})
    channels = {1, *shape[1:2]}
    return frozenset(4 + 8 * each - (-elements * BITS[codec] // 8) for each in channels)


def decode(data: bytes | memoryview, codec: str, shape: tuple[int, ...]) -> np.ndarray:
    """The FP32 array of bytes that `encode` made. Raises `DecodeError`.

    The caller has bounded the elements of `shape`; nothing is allocated before the data's size fits
    the shape.
    """
    elements = math.prod(shape)
    if not elements:
        raise DecodeError(f"codec {codec:.80}: an empty tensor travels plain")
    if codec == "f16":
        _check_size(data, 2 * elements, codec, shape)
        return np.frombuffer(data, "<f2").astype(_FP32).reshape(shape)
    if codec not in BITS:
        raise DecodeError(f"codec {codec!r:.80} is not known here")
    bits, channels = BITS[codec], int.from_bytes(data[:_U32], "little")
    if channels != 1 and (len(shape) < 2 or channels != shape[1]):
        raise DecodeError(f"codec {codec}: {channels} channels in a tensor of shape {shape}")
    _check_size(data, 4 + 8 * channels + -(-elements * bits // 8), codec, shape)
    least, step = np.frombuffer(data, _FP32, 2 * channels, _U32).reshape(2, channels)
    if not (np.isfinite(least).all() and np.isfinite(step).all() and (step >= 0).all()):
        raise DecodeError(f"codec {codec}: a channel's range is no range")
    packed = np.frombuffer(data, np.uint8, offset=4 + 8 * channels)
    numbers = _unpack(packed, bits, elements).reshape(_by_channel(shape, channels))
    with np.errstate(over="ignore"):  # half a step above the greatest FP32 is infinity
        values = numbers * step[:, None] + least[:, None]
    return values.astype(_FP32, copy=False).reshape(shape)


def _channel_count(array: np.ndarray) -> int:
    if array.ndim < 3 or array.nbytes < PER_CHANNEL_FROM:
        return 1
    channels = int(array.shape[1])
    return channels if array.size >= channels * LEAST_OF_CHANNEL else 1


def _by_channel(shape: tuple[int, ...], channels: int) -> tuple[int, int, int]:
    """(what is before the channels, channels, what is behind)."""
    if channels == 1:
        return 1, 1, math.prod(shape)
    return shape[0], channels, math.prod(shape[2:])


def _check_size(
    data: bytes | memoryview, expected: int, codec: str, shape: tuple[int, ...]
) -> None:
    if len(data) != expected:
        text = f"{len(data)} bytes of data where shape {shape} takes {expected}"
        raise DecodeError(f"codec {codec}: {text}")


def _pack(numbers: np.ndarray, bits: int) -> bytes:
    """The numbers u8 [n], the first in the low bits of its byte."""
    used = -(-numbers.size * bits // 8)
    if bits == 8:
        return numbers.tobytes()
    group = _GROUPS[bits]
    if odd := -numbers.size % group:
        numbers = np.concatenate((numbers, np.zeros(odd, np.uint8)))
    columns = [numbers[at::group] for at in range(group)]
    if bits == 4:
        pieces = [columns[0] | columns[1] << 4]
    else:
        a, b, c, d = columns
        pieces = [a | b << 6, b >> 2 | c << 4, c >> 4 | d << 2]
    packed: bytes = np.stack(pieces, axis=1).tobytes()
    return packed[:used]


def _unpack(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    if bits == 8:
        return packed
    group = _GROUPS[bits]
    width = group * bits // 8  # bytes
    if odd := -packed.size % width:
        packed = np.concatenate((packed, np.zeros(odd, np.uint8)))
    columns = [packed[at::width] for at in range(width)]
    numbers = np.empty(columns[0].size * group, np.uint8)
    if bits == 4:
        numbers[0::2], numbers[1::2] = columns[0] & 15, columns[0] >> 4
    else:
        a, b, c = columns
        numbers[0::4], numbers[1::4] = a & 63, (a >> 6 | b << 2) & 63
        numbers[2::4], numbers[3::4] = (b >> 4 | c << 4) & 63, c >> 2
    return numbers[:count]
