"""Hostile messages out of valid ones. Pure: the same generator gives the same messages.

Bytes are flipped, cut, repeated, moved and spliced, and numbers of 1 to 8 bytes in them are set to
their extremes, which is how lengths lie. Documents (MessagePack, JSON) are changed as documents
too, so that the bytes stay readable and the values behind them do not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal

import msgpack

Form = Literal["bytes", "msgpack", "json"]
MOST_BYTES = 1 << 20  # of a mutated message
_DEEPEST = 400  # levels that MessagePack's writer can write; deeper ones are made of bytes
_EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_NESTED = (
    b"\x91",
    b"\x81\xa1x",
    b"\xdc\x00\x01",
    b"[",
    b'{"x":',
    b"\x0a\x7f",
    b"\xdd\xff\xff\xff\xff",
)
_MANY = (b"\x90", b"\x80", b"\xc0", b"[],", b"{},", b"0,", b'"",', b"\x00", b"\r\n", b"\n", b" ")

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    255,
    65536,
    2**31,
    2**53,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
    0.0,
    -0.5,
    1e308,
    float("inf"),
    float("nan"),
    "",
    "a",
    "a b\r\nPUB x 0\r\n",
    "../../etc/passwd",
    "é\u2028\x00",
    "x" * 600,
    b"",
    b"\x00" * 33,
    [],
    [[]],
    {},
    {"x": {}},
    [0] * 300,
)
# JSON says these, and MessagePack cannot.
_JSON_VALUES: tuple[Any, ...] = (10**400, -(10**400), 2**64, "\ud800", 1e-320)


def mutated(rng: Random, seeds: Sequence[bytes], form: Form) -> bytes:
    """One message, at most `MOST_BYTES` long; a seed may come through unchanged."""
    data = rng.choice(seeds)
    if form != "bytes" and rng.random() < 0.5:
        data = _document(rng, data, form)
        if rng.random() < 0.7:
            return data[:MOST_BYTES]
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        rng.choice(_CHANGES)(rng, changed, seeds)
        if len(changed) > MOST_BYTES:
            del changed[MOST_BYTES:]
    return bytes(changed)


# --- bytes ----------------------------------------------------------------------------------


def _flip(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    for _times in range(rng.choice((1, 1, 4, 16))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _byte(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _number(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    """A length, perhaps: somewhere, of some width, at an extreme."""
    width = rng.choice((1, 2, 4, 8))
    if len(data) < width:
        return
    extreme = rng.choice((*_EXTREMES, 2**63 - 1, 2**63, 2**64 - 1, rng.getrandbits(32)))
    extreme &= (1 << 8 * width) - 1
    at = rng.randrange(len(data) - width + 1)
    data[at : at + width] = extreme.to_bytes(width, rng.choice(("little", "big")))


def _digits(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    """A decimal number in a text becomes another one."""
    places = [at for at, byte in enumerate(data[:4096]) if 48 <= byte < 58]
    if places:
        at = rng.choice(places)
        text = rng.choice(("-1", "0", "1e999", "4294967296", "9" * 30, "9" * 5000, "1_0", "٣"))
        data[at : at + 1] = text.encode()


def _cut(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _remove(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 2, 8, 64))]


def _repeat(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    piece = bytes(data[at : at + rng.choice((1, 4, 32, 256))])
    data[at:at] = piece * rng.choice((1, 2, 16, 300))


def _whole_again(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    data *= rng.choice((2, 3, 40))


def _splice(rng: Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = rng.choice(seeds)
    at = rng.randrange(len(data) + 1)
    data[at:] = other[rng.randrange(len(other) + 1) :]


def _deep(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(_NESTED) * rng.choice((20, 600, 3000, 20_000))


def _many(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.choice(_MANY) * rng.choice((20, 500, 5000, 60_000))


def _noise(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.choice((1, 3, 16, 200)))


def _tail_of_noise(rng: Random, data: bytearray, _: Sequence[bytes]) -> None:
    data[rng.randrange(len(data) + 1) :] = rng.randbytes(rng.choice((0, 1, 16, 500)))


_Change = Callable[[Random, bytearray, Sequence[bytes]], None]
# The usual ones several times: most messages stay near to valid ones.
_CHANGES: tuple[_Change, ...] = (
    *(_flip, _byte, _number) * 4,
    *(_digits, _cut, _remove, _repeat, _splice, _noise) * 2,
    *(_whole_again, _deep, _many, _tail_of_noise),
)


# --- documents ------------------------------------------------------------------------------


def _document(rng: Random, data: bytes, form: Form) -> bytes:
    """The seed with values exchanged, nested, left out, or said by other keys."""
    try:
        doc = json.loads(data) if form == "json" else msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.exceptions.UnpackException):
        return data  # a seed that is no document: its bytes are changed alone
    # The growths of several changes multiply.
    most = min(300, MOST_BYTES // max(1, len(data)))
    for times in (most, 3, 2, 1)[: rng.choice((1, 1, 2, 4))]:
        doc = _changed(rng, doc, form, max(1, times))
    try:
        if form == "json":
            return json.dumps(doc).encode()
        packed: bytes = msgpack.packb(doc)
        return packed
    except (ValueError, TypeError, OverflowError, RecursionError):
        return data


def _changed(rng: Random, doc: Any, form: Form, most: int) -> Any:
    """The document, with one place of it changed; what is repeated stands there `most` times."""
    if isinstance(doc, dict) and doc and rng.random() < 0.85:
        key = rng.choice(list(doc))
        inner = dict(doc)
        kind = rng.random()
        if kind < 0.08:
            del inner[key]
        elif kind < 0.14:
            inner[rng.choice(("x", "", "v", "self", "name", "y" * 300))] = inner[key]
        elif kind < 0.18:
            inner |= {f"{key}{number}": inner[key] for number in range(rng.choice((1, most)))}
        else:
            inner[key] = _changed(rng, inner[key], form, most)
        return inner
    if isinstance(doc, list) and doc and rng.random() < 0.8:
        at = rng.randrange(len(doc))
        kind = rng.random()
        if kind < 0.1:
            return doc[:at]
        if kind < 0.2:
            return doc * rng.choice((1, most))
        return [*doc[:at], _changed(rng, doc[at], form, most), *doc[at + 1 :]]
    return _instead(rng, doc, form)


def _instead(rng: Random, value: Any, form: Form) -> Any:
    kind = rng.random()
    if kind < 0.1:
        for _ in range(rng.choice((1, 5, 50, _DEEPEST))):
            value = [value]
        return value
    if kind < 0.25 and isinstance(value, int):
        return value + rng.choice((-1, 1, 2**16, 2**32))
    if kind < 0.35 and isinstance(value, str | bytes):
        return value[:-1] if rng.random() < 0.5 else value * 2
    if form == "json":
        found = rng.choice((*VALUES, *_JSON_VALUES))
        return found.decode("latin-1") if isinstance(found, bytes) else found
    return rng.choice(VALUES)
