"""The wire format of Protocol Buffers, as far as ONNX files need it.

A message is a row of fields, each `tag | value`, where the tag holds the field's number and the
kind of the value: https://protobuf.dev/programming-guides/encoding/. A device that runs shards has
no `onnx` package, and it needs little of a file: the weights, and the last layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shards.errors import ModelError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_FIXED = {FIXED64: 8, FIXED32: 4}
_LONGEST_VARINT = 10  # bytes


class Field(NamedTuple):
    """One field of a message. `number` and `kind` are those of its tag.

    `value` is the integer of a varint. `data` views the bytes of any other kind. `begin` and `end`
    are the field's place in the message, tag included.
    """

    number: int
    kind: int
    value: int
    data: memoryview
    begin: int
    end: int


def fields(message: memoryview) -> Iterator[Field]:
    """The fields of a message, in order. Raises ModelError where it is malformed."""
    at, size = 0, len(message)
    while at < size:
        begin = at
        tag, at = read_varint(message, at)
        kind, value, content = tag & 7, 0, at
        if kind == VARINT:
            value, at = read_varint(message, at)
        elif kind == BYTES:
            length, content = read_varint(message, at)
            at = content + length
        elif kind in _FIXED:
            at += _FIXED[kind]
        else:
            raise ModelError(f"not an ONNX model: field kind {kind} at byte {begin}")
        if at > size:
            raise ModelError(f"not an ONNX model: the field at byte {begin} is cut short")
        yield Field(tag >> 3, kind, value, message[content:at], begin, at)


def read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """The unsigned number at a byte, and the place behind it. Raises ModelError."""
    value = 0
    for index, byte in enumerate(message[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at + index + 1
    raise ModelError(f"not an ONNX model: a number at byte {at} does not end")


def varints(data: memoryview) -> list[int]:
    """The unsigned numbers of a packed field. Raises ModelError."""
    found, at = [], 0
    while at < len(data):
        value, at = read_varint(data, at)
        found.append(value)
    return found


def signed(value: int) -> int:
    """The number that a varint of 64 bits in two's complement means."""
    return value - (1 << 64) if value >= 1 << 63 else value


def text(field: Field) -> str:
    """The text of a field. Raises ModelError where the bytes are not UTF-8."""
    try:
        return str(field.data, "utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"not an ONNX model: a name is not text: {error}") from error


def write_varint(value: int) -> bytes:
    """An unsigned number."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number_field(number: int, value: int) -> bytes:
    """A field that holds an unsigned number."""
    return write_varint(number << 3 | VARINT) + write_varint(value)


def bytes_field(number: int, data: bytes | memoryview) -> bytes:
    """A field that holds bytes, a text, or another message."""
    return b"".join((write_varint(number << 3 | BYTES), write_varint(len(data)), data))


def text_field(number: int, value: str) -> bytes:
    """A field that holds a text."""
    return bytes_field(number, value.encode())


def joined(parts: Iterable[bytes | memoryview]) -> bytes:
    """One message of its fields."""
    return b"".join(parts)
