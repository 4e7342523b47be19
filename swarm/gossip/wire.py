"""Gossip messages as bytes: a MessagePack map, then a 16-byte MAC when the mesh has a key.

    v  version, 1
    t  kind: "syn" (a request), "synack" (its answer), "ack" (differences, no answer),
       "probe" (please try node p), "probed" (node p answered)
    s  the sender: its entry [id, incarnation, heartbeat, version, status] and its instance number
    d  digest: entries that are news
    w  repair window [low, high, entries]: all that the sender knows with low < id <= high
       (high "": to the end)
    x  deltas that are news: entry and [base, floor, [[key, version, value or nil], ...]]
    f  deltas that fill gaps: the same, not to be told on
    n  needs: [id, incarnation, version] of which newer keys are wanted
    p  the node that a probe is about

Unknown fields are ignored. Everything is bounded before it is allocated: the size of the message
before it is parsed, the length of every array and map in it while it is.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgpack

from swarm.errors import DecodeError
from swarm.gossip.state import LEFT, Delta, Entry, array_header

VERSION = 1
MAC_BYTES = 16
LONGEST_LIST = 256
_NODE_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY_CHARS = 64
_KINDS = frozenset(("syn", "synack", "ack", "probe", "probed"))
_SECTIONS = ("d", "x", "f", "n")
_LIST_BYTES = 2 + 3  # a section's key and its longest array header
_LARGEST_NUMBER = 2**63 - 1

MeshKey = bytes | Sequence[bytes] | None  # several keys: while the mesh changes its key
Need = tuple[str, int, int]
Window = tuple[str, str, tuple[Entry, ...]]


class RefusedGossip(DecodeError):
    """A message that is not acted upon. `reason` is the counter that it belongs to."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class GossipMessage:
    """A decoded message; every field is within its limits."""

    kind: str
    sender: Entry
    instance: int
    digest: tuple[Entry, ...] = ()
    window: Window | None = None
    deltas: tuple[Delta, ...] = ()
    fills: tuple[Delta, ...] = ()
    needs: tuple[Need, ...] = ()
    target: str | None = None


def valid_id(node: object) -> bool:
    """Whether `node` can be a subject's token, and is at most 64 characters."""
    return type(node) is str and _NODE_ID.fullmatch(node) is not None


def keys_of(key: MeshKey) -> tuple[bytes, ...]:
    """The mesh's keys, when they are usable; the first one marks, and each is taken.

    Raises `ValueError` unless each has 16 to 64 bytes.
    """
    keys = () if key is None else (key,) if isinstance(key, bytes) else tuple(key)
    if not all(16 <= len(one) <= 64 for one in keys):
        raise ValueError("the mesh key must have 16 to 64 bytes")
    return keys


def _mac(body: bytes, key: bytes) -> bytes:
    return blake2b(body, digest_size=MAC_BYTES, key=key, person=b"swarm gossip 1").digest()


class BoundedMessage:
    """A message under construction that never exceeds `budget` bytes.

    Parts are added already packed, so that what is sent often is packed once.
    """

    def __init__(self, kind: str, sender: bytes, budget: int, key: bytes | None) -> None:
        self._head = b"".join((b"\xa1v\x01\xa1t", msgpack.packb(kind), b"\xa1s", sender))
        self._lists: dict[str, list[bytes]] = {}
        self._extra: list[bytes] = []
        self._key = key
        self._space = budget - len(self._head) - 1 - (MAC_BYTES if key else 0)

    @property
    def space(self) -> int:
        """Bytes that can still be added."""
        return self._space

    def add(self, section: str, packed: bytes) -> bool:
        """Append one packed element to section d, x, f or n; False when there is no room."""
        parts = self._lists.get(section)
        cost = len(packed) if parts else len(packed) + _LIST_BYTES
        if cost > self._space or (parts and len(parts) >= LONGEST_LIST):
            return False
        if parts is None:
            self._lists[section] = [packed]
        else:
            parts.append(packed)
        self._space -= cost
        return True

    def extra(self, field: str, packed: bytes) -> None:
        """Set a one-off field (w or p). The caller has checked that it fits in `left`."""
        self._extra.append(msgpack.packb(field) + packed)
        self._space -= len(packed) + 2

    def encode(self) -> bytes:
        """The finished message."""
        parts = [bytes((0x83 + len(self._lists) + len(self._extra),)), self._head]
        for section in _SECTIONS:
            elements = self._lists.get(section)
            if elements:
                parts += (msgpack.packb(section), array_header(len(elements)), *elements)
        parts += self._extra
        body = b"".join(parts)
        return body + _mac(body, self._key) if self._key else body


def decode(payload: bytes, key: MeshKey, limit: int) -> GossipMessage:
    """Read a message, marked with one of the keys. Raises `RefusedGossip`: too_large, forged,
    malformed, or version."""
    if len(payload) > limit:
        raise RefusedGossip("too_large", f"{len(payload)} bytes, at most {limit} are read")
    body = payload
    if keys := keys_of(key):
        body, mac = payload[:-MAC_BYTES], bytes(payload[-MAC_BYTES:])
        if not body or not any(hmac.compare_digest(_mac(body, one), mac) for one in keys):
            raise RefusedGossip("forged", "the MAC does not belong to this mesh's key")
    raw = _unpack(body)
    if type(raw) is not dict:
        raise RefusedGossip("malformed", "not a map")
    version = raw.get("v")
    if type(version) is int and version != VERSION:
        raise RefusedGossip("version", f"gossip version {version}; this node speaks {VERSION}")
    try:
        return _message(raw)
    except (TypeError, ValueError, LookupError) as error:
        raise RefusedGossip("malformed", str(error)) from None


def read_value(packed: bytes) -> object:
    """Decode a scalar, a list or a small map. Raises `RefusedGossip` (malformed) for all else."""
    return _unpack(packed)


def _unpack(data: bytes) -> Any:
    try:
        return msgpack.unpackb(
            data,
            use_list=False,
            max_array_len=LONGEST_LIST,
            max_map_len=64,
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError, MemoryError) as error:
        # Not `repr`: an error of msgpack may hold the whole document.
        raise RefusedGossip("malformed", str(error) or type(error).__name__) from None


def _message(raw: dict[str, Any]) -> GossipMessage:
    if type(raw.get("v")) is not int:
        raise ValueError("no version")
    kind, sender = raw.get("t"), raw["s"]
    if type(kind) is not str or kind not in _KINDS:
        raise ValueError("unknown kind")
    entry = _entry(sender)
    target = raw.get("p")
    if target is not None and not valid_id(target):
        raise ValueError("probe of an invalid node id")
    window = raw.get("w")
    return GossipMessage(
        kind,
        entry,
        _count(sender[5]),
        _each(raw, "d", _entry),
        None if window is None else _window(window),
        _each(raw, "x", _delta),
        _each(raw, "f", _delta),
        _each(raw, "n", _need),
        target,
    )


def _each(raw: dict[str, Any], section: str, read: Callable[[Any], Any]) -> tuple[Any, ...]:
    elements = raw.get(section)
    if elements is None:
        return ()
    if type(elements) is not tuple:
        raise TypeError("a section is no array")
    return tuple(map(read, elements))


def _count(number: object) -> int:
    if type(number) is int and 0 <= number <= _LARGEST_NUMBER:
        return number
    raise ValueError("not a number from 0 to 2^63 - 1")


def _entry(raw: Any) -> Entry:
    node, incarnation, heartbeat, version, status = raw[:5]
    if not (
        type(node) is str
        and type(incarnation) is type(heartbeat) is type(version) is type(status) is int
        and 0 <= incarnation <= _LARGEST_NUMBER
        and 0 <= heartbeat <= _LARGEST_NUMBER
        and 0 <= version <= _LARGEST_NUMBER
        and 0 <= status <= LEFT
        and _NODE_ID.fullmatch(node)
    ):
        raise ValueError("not an entry")
    return node, incarnation, heartbeat, version, status


def _window(raw: Any) -> Window:
    low, high, entries = raw[:3]
    if type(low) is not str or type(high) is not str or type(entries) is not tuple:
        raise TypeError("not a window")
    return low, high, tuple(map(_entry, entries))


def _delta(raw: Any) -> Delta:
    items = raw[7]
    if type(items) is not tuple:
        raise TypeError("not a list of keys")
    return Delta(_entry(raw), _count(raw[5]), _count(raw[6]), tuple(map(_item, items)))


def _item(raw: Any) -> tuple[str, int, bytes | None]:
    key, version, packed = raw[:3]
    if type(key) is not str or not 1 <= len(key) <= _KEY_CHARS:
        raise ValueError("not a key")
    if packed is not None and type(packed) is not bytes:
        raise ValueError("not a packed value")
    return key, _count(version), packed


def _need(raw: Any) -> Need:
    node, incarnation, version = raw[:3]
    if not valid_id(node):
        raise ValueError("not a node id")
    return node, _count(incarnation), _count(version)
