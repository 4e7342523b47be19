"""Tensors on the wire: `{name: {datatype, shape, codec, data}}`.

Datatypes by the Open Inference Protocol's names, little-endian, C order. Encoding yields
the tensor's own memory, decoding a view of the received bytes: neither copies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import msgpack
import numpy as np

from swarm.errors import DecodeError, InvalidArgument
from swarm.subjects import INBOX
from swarm.wire import codecs, compression
from swarm.wire.codecs import CODECS
from swarm.wire.compression import ZSTD
from swarm.wire.hops import LONGEST_CODEC

Tensors = dict[str, np.ndarray]
Part = bytes | memoryview

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
DATATYPES = {dtype: name for name, dtype in DTYPES.items()}
RAW = "raw"
SHM = "shm"  # `data` is a claim on shared memory, not the bytes
REFERRED = "referred"  # `data` is where the bytes are to be had
CODED_FROM = 1024  # bytes: below, a codec saves less than its field costs
ZSTD_FROM = 4096  # bytes of a coded tensor: measured, below it nothing is gained
_ZSTD_SUFFIX = f"-{ZSTD}"


@dataclass(frozen=True, slots=True)
class MessageLimits:
    """Bounds on a message; checked before anything is allocated."""

    bytes: int = 64 << 20  # the server's own hard limit on a payload
    tensors: int = 256
    rank: int = 16
    dimension: int = 1 << 31
    name: int = 512  # characters


LIMITS = MessageLimits()


def datatype_of(array: np.ndarray) -> str:
    """The Open Inference Protocol name of an array's dtype; raises `InvalidArgument`."""
    name = DATATYPES.get(array.dtype.newbyteorder("<"))
    if name is None:
        raise InvalidArgument(
            f"dtype {array.dtype} has no datatype on the wire; use one of {', '.join(DTYPES)}"
        )
    return name


def plain(array: np.ndarray) -> np.ndarray:
    """The array in the form that travels: little-endian, C order.

    It is `array` itself where that has this form already; otherwise a copy, in which a 0-d array
    may become 1-d. Raises `InvalidArgument` for a dtype without a datatype.
    """
    if array.dtype not in DATATYPES:
        array = array.astype(DTYPES[datatype_of(array)])
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


class Coding(NamedTuple):
    """How tensors travel. lossy: the codec of FP32, of `CODECS`, or "" for the exact values. zstd:
    whether the bytes of all datatypes are compressed."""

    lossy: str = ""
    zstd: bool = False

    @property
    def name(self) -> str:
        """As in the field `codec` of a tensor: `i8-zstd`, `i8`, `zstd`; `raw` for neither."""
        return "-".join([self.lossy] * bool(self.lossy) + [ZSTD] * self.zstd) or RAW


PLAIN = Coding()


def known_codecs() -> tuple[str, ...]:
    """What this process can read, as it tells others: codecs of `CODECS`, and `zstd`."""
    return (*CODECS, ZSTD) if compression.is_installed() else CODECS


@lru_cache(maxsize=1024)
def _prefix(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The MessagePack bytes of one tensor up to its data; every request of a model repeats them."""
    size = dtype.itemsize * math.prod(shape)
    return _head(name, dtype, shape, RAW) + b"\xc6" + size.to_bytes(4, "big")


def _head(name: str, dtype: np.dtype[Any], shape: tuple[int, ...], codec: str) -> bytes:
    packer = msgpack.Packer(autoreset=False)
    packer.pack(name)
    packer.pack_map_header(4)
    for key, value in (("datatype", DATATYPES[dtype]), ("shape", shape), ("codec", codec)):
        packer.pack(key)
        packer.pack(value)
    packer.pack("data")
    head: bytes = packer.bytes()
    return head


@lru_cache(maxsize=1024)
def claim_prefix(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The bytes of a tensor in shared memory, up to its claim, which is any MessagePack value."""
    return _head(name, dtype, shape, SHM)


def encode_tensors(tensors: Mapping[str, np.ndarray | Referred]) -> list[Part]:
    """The tensors as one MessagePack map, in parts; the data parts are the arrays' memory.

    The arrays must not be written to until the parts have been sent.
    Raises `InvalidArgument` for a dtype that has no datatype on the wire.
    """
    parts: list[Part] = [map_prefix(len(tensors))]
    for name, array in tensors.items():
        if isinstance(array, Referred):
            parts.append(_head(name, array.dtype, array.shape, REFERRED) + msgpack.packb(array.at))
            continue
        shape = array.shape
        array = plain(array)
        parts += (_prefix(name, array.dtype, shape), memory_of(array))
    return parts


def map_prefix(count: int) -> bytes:
    """The bytes of a MessagePack map of so many tensors, up to the first one."""
    return b"\xde" + count.to_bytes(2, "big")


def encode_coded(
    tensors: Mapping[str, np.ndarray], coding: Coding, exact: list[str] | None = None
) -> list[Part]:
    """The entries of a map (`map_prefix`), in a codec; a tensor that this one cannot say, or does
    not make smaller, travels plain (`swarm.wire.codecs.encode`). exact: gets the names of large
    FP32 tensors whose values the lossy codec cannot say."""
    parts: list[Part] = []
    for name, array in tensors.items():
        shape, array = array.shape, plain(array)
        codec, data = _coded(array, coding)
        if exact is not None and coding.lossy and codec in (RAW, ZSTD) and _may_be_lossy(array):
            exact.append(name)
        if codec == RAW:
            parts += (_prefix(name, array.dtype, shape), data)
        else:
            head = _head(name, array.dtype, shape, codec)
            parts += (head + b"\xc6" + len(data).to_bytes(4, "big"), data)
    return parts


def _may_be_lossy(array: np.ndarray) -> bool:
    return array.dtype == np.float32 and array.nbytes >= CODED_FROM


def _coded(array: np.ndarray, coding: Coding) -> tuple[str, Part]:
    """(codec, data) of a `plain` array."""
    codec, data = RAW, memory_of(array)
    if array.nbytes < CODED_FROM:
        return codec, data
    if coding.lossy and (lossy := codecs.encode(array, coding.lossy)) is not None:
        codec, data = coding.lossy, lossy
    if coding.zstd and len(data) >= ZSTD_FROM:
        packed = compression.compress(data)
        if len(packed) < len(data):
            return (ZSTD if codec == RAW else codec + _ZSTD_SUFFIX), packed
    return codec, data


def codec_of(doc: Any) -> str:
    """The codec in which tensors of a message came, before `decode_tensors`; "" where all of them
    came as bytes, or in shared memory. Of several the first that loses something."""
    found = ""
    if type(doc) is dict:
        for value in doc.values():
            codec = value.get("codec", RAW) if type(value) is dict else RAW
            if codec not in (RAW, SHM, REFERRED) and type(codec) is str:
                found = codec[:LONGEST_CODEC]
                if codec != ZSTD:
                    break
    return found


def memory_of(array: np.ndarray) -> Part:
    """The bytes of an array that is `plain`."""
    # A zero-size array has no memory to cast; a 0-d one has no shape to cast.
    return array.reshape(-1).view(np.uint8).data if array.size else b""


class Claimed(NamedTuple):
    """A tensor whose bytes lie in shared memory, as its message describes it.

    nbytes: the bytes of dtype and shape. They are computed with Python's integers: NumPy's would
    wrap around, and a hostile shape would pass for a small one.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int
    claim: Any


class Referred(NamedTuple):
    """A tensor whose bytes stay for a while at the node that made them. at: the subject at which
    that node is asked for them (`swarm.transport.referred`). nbytes: as of `Claimed`."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int
    at: str

    @property
    def ndim(self) -> int:
        return len(self.shape)


def are_referred(tensors: Mapping[str, Any]) -> bool:
    """Whether the bytes of any tensor are elsewhere."""
    return Referred in map(type, tensors.values())


def decode_tensors(doc: Any, limits: MessageLimits = LIMITS) -> dict[str, Any]:
    """Arrays that view the received bytes (read-only where those are), `Claimed`, or `Referred`.

    Raises `DecodeError`, naming the tensor and what is wrong with it.
    """
    if type(doc) is not dict or len(doc) > limits.tensors:
        raise DecodeError(f"tensors must be a map of at most {limits.tensors} entries")
    return {name: _decode_tensor(name, value, limits) for name, value in doc.items()}


def _decode_tensor(name: Any, value: Any, limits: MessageLimits) -> Any:
    _check_name(name, limits)
    if type(value) is not dict:
        raise DecodeError(f"tensor {name!r} must be a map of datatype, shape, codec and data")
    get: Any = value.get
    datatype, shape, codec, data = get("datatype"), get("shape"), get("codec", RAW), get("data")
    dtype, size = _dtype_and_size(name, datatype, shape, limits)
    if codec == SHM:
        return Claimed(dtype, tuple(shape), size, data)
    if codec == REFERRED:
        if type(data) is not str or INBOX.fullmatch(data) is None:
            raise DecodeError(f"tensor {name!r}: a tensor is referred to by an inbox")
        return Referred(dtype, tuple(shape), size, data)
    if type(data) is not bytes and type(data) is not memoryview:
        raise DecodeError(f"tensor {name!r}: data must be bytes")
    if codec != RAW:
        return _decode_coded(name, datatype, shape, size, codec, data, limits)
    if len(data) != size:
        raise DecodeError(
            f"tensor {name!r}: {len(data)} bytes of data where shape {shape} of "
            f"{datatype} takes {size}"
        )
    try:
        return np.ndarray(shape, dtype, data)
    except ValueError:  # a dimension of 0 beside ones whose product no array may have
        raise DecodeError(f"tensor {name!r}: shape {shape} is too large") from None


def _decode_coded(
    name: str, datatype: str, shape: Any, size: int, codec: Any, data: Part, limits: MessageLimits
) -> np.ndarray:
    """A tensor in a codec of `swarm.wire.codecs`, or of zstd: it is smaller on the wire than
    here."""
    compressed = type(codec) is str and (codec == ZSTD or codec.endswith(_ZSTD_SUFFIX))
    lossy = codec.removesuffix(ZSTD).removesuffix("-") if compressed else codec
    if not (compressed and not lossy) and lossy not in CODECS:
        raise DecodeError(f"tensor {name!r}: codec {codec!r:.80} is not known here")
    if lossy and datatype != "FP32":
        raise DecodeError(f"tensor {name!r}: codec {codec} is for FP32, not for {datatype}")
    if size > limits.bytes:
        raise DecodeError(f"tensor {name!r}: {size} bytes decoded; {limits.bytes} are accepted")
    shape = tuple(shape)
    try:
        if compressed:
            sizes = codecs.sizes(lossy, shape) if lossy else frozenset({size})
            data = compression.decompress(data, sizes)
        if lossy:
            return codecs.decode(data, lossy, shape)
        return np.ndarray(shape, DTYPES[datatype], data)
    except (DecodeError, ValueError) as error:
        raise DecodeError(f"tensor {name!r}: {error}") from None


def read_spec(
    name: Any, datatype: Any, shape: Any, limits: MessageLimits = LIMITS
) -> tuple[np.dtype[Any], int]:
    """The dtype and the number of bytes of a tensor in a message. Raises `DecodeError`."""
    _check_name(name, limits)
    return _dtype_and_size(name, datatype, shape, limits)


def _check_name(name: Any, limits: MessageLimits) -> None:
    if type(name) is not str or not 0 < len(name) <= limits.name:
        raise DecodeError(f"a tensor's name must be a string of 1 to {limits.name} characters")


def _dtype_and_size(
    name: str, datatype: Any, shape: Any, limits: MessageLimits
) -> tuple[np.dtype[Any], int]:
    dtype = DTYPES.get(datatype) if type(datatype) is str else None
    if dtype is None:
        raise DecodeError(f"tensor {name!r}: datatype must be one of {', '.join(DTYPES)}")
    return dtype, _check_shape(name, shape, limits) * dtype.itemsize


def _check_shape(name: str, shape: Any, limits: MessageLimits) -> int:
    """The number of elements of a shape that is within the limits."""
    if type(shape) is not list or len(shape) > limits.rank:
        raise DecodeError(f"tensor {name!r}: shape must be a list of at most {limits.rank}")
    elements = 1
    for dimension in shape:
        if type(dimension) is not int or not 0 <= dimension <= limits.dimension:
            raise DecodeError(f"tensor {name!r}: {dimension!r:.80} is no dimension")
        elements *= dimension
    return elements
