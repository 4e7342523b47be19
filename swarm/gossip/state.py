"""One node's state, and the differences of it that travel.

Scuttlebutt (van Renesse, Dumitriu, Gough, Thomas: "Efficient reconciliation and flow control for
anti-entropy protocols", LADIS 2008): each node writes only its own keys, numbers every write, and
a peer that has seen up to version v needs exactly the keys written after v. A difference is applied
whole or not at all. Records are never changed in place: a change makes a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgpack

ALIVE, SUSPECT, DEAD, LEFT = range(4)  # as on the wire; DEAD and LEFT are final for an incarnation

Entry = tuple[str, int, int, int, int]
"""What a digest says of a node: id, incarnation, heartbeat, version, status."""

_EMPTY: Mapping[str, Item] = MappingProxyType({})


class Item(NamedTuple):
    """One key: `packed` is its value as MessagePack, None when deleted (at local time `at`)."""

    version: int
    packed: bytes | None
    value: object
    at: float
    wire: bytes


class Delta(NamedTuple):
    """A node's entry and its keys written after version `base` (0: all of its keys).

    `floor` is the highest version among its forgotten deletions.
    """

    entry: Entry
    base: int
    floor: int
    items: tuple[tuple[str, int, bytes | None], ...]


class NodeState:
    """What is known of one node: its identity, liveness and keys. Not to be changed in place.

    `incarnation` grows when the node refutes its death, `heartbeat` when it refutes a suspicion,
    `version` with each key written.
    """

    __slots__ = ("entry", "floor", "heartbeat", "incarnation", "items", "node", "status", "version")

    def __init__(
        self,
        node: str,
        incarnation: int,
        heartbeat: int = 0,
        version: int = 0,
        status: int = ALIVE,
        floor: int = 0,
        items: Mapping[str, Item] = _EMPTY,
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        self.heartbeat = heartbeat
        self.version = version
        self.status = status
        self.floor = floor
        self.items = items
        # Entries are sent far more often than they change.
        self.entry: bytes = msgpack.packb((node, incarnation, heartbeat, version, status))

    @property
    def final(self) -> bool:
        """Dead or departed."""
        return self.status >= DEAD

    def with_liveness(self, heartbeat: int, status: int) -> NodeState:
        """The same node with another heartbeat and status; a final one keeps no keys."""
        items = _EMPTY if status >= DEAD else self.items
        return NodeState(
            self.node, self.incarnation, heartbeat, self.version, status, self.floor, items
        )

    def with_incarnation(self, incarnation: int) -> NodeState:
        """The same node, reborn: alive, heartbeat 0, its keys and versions kept."""
        return NodeState(self.node, incarnation, 0, self.version, ALIVE, self.floor, self.items)

    def with_item(self, key: str, packed: bytes | None, value: object, now: float) -> NodeState:
        """The same node after it wrote `key` (deleted it, when `packed` is None)."""
        version = self.version + 1
        items = dict(self.items)
        items.pop(key, None)  # keeps the order of versions
        items[key] = make_item(key, version, packed, value, now)
        return NodeState(
            self.node, self.incarnation, self.heartbeat, version, self.status, self.floor, items
        )

    def without_deleted(self, keys: Iterable[str]) -> NodeState:
        """The same node with these deletions forgotten. A peer that has not seen them needs all
        keys again."""
        items = dict(self.items)
        floor = max([self.floor, *(items.pop(key).version for key in keys)])
        return NodeState(
            self.node, self.incarnation, self.heartbeat, self.version, self.status, floor, items
        )

    def delta(self, base: int) -> bytes:
        """The packed `Delta` for a peer that has seen up to version `base`."""
        if self.final:
            base = self.version
        elif base < self.floor:
            base = 0
        wires = [item.wire for item in self.items.values() if item.version > base]
        # An entry is a 5-array (first byte 0x95), a delta is the same and three more (0x98).
        return b"".join(
            (
                b"\x98",
                self.entry[1:],
                msgpack.packb(base),
                msgpack.packb(self.floor),
                array_header(len(wires)),
                *wires,
            )
        )

    def values(self) -> dict[str, object]:
        """The live keys and their decoded values."""
        return {key: item.value for key, item in self.items.items() if item.packed is not None}

    def weight(self) -> int:
        """Bytes that all keys take in a message."""
        return sum(len(item.wire) for item in self.items.values())


def make_item(key: str, version: int, packed: bytes | None, value: object, now: float) -> Item:
    """An item with its encoding, which is what deltas are made of."""
    return Item(version, packed, value, now, msgpack.packb((key, version, packed)))


def array_header(length: int) -> bytes:
    """The MessagePack header of an array of `length` (below 65536) elements."""
    return bytes((0x90 | length,)) if length < 16 else b"\xdc" + length.to_bytes(2, "big")


def apply(
    state: NodeState,
    delta: Delta,
    now: float,
    read: Callable[[str, bytes | None], tuple[bool, object]],
) -> tuple[NodeState, list[str]]:
    """The state after a delta of the same incarnation, and the keys that changed.

    `read(key, packed)` decodes and judges a value: (accepted, value). A value that is not accepted
    leaves the key as it was; the version moves on, so it is not asked for again. A delta that does
    not connect to what is known (`base` above our version), or brings nothing new, changes nothing.
    """
    version = delta.entry[3]
    if not delta.base <= state.version < version:
        return state, []
    items = {} if delta.base == 0 else dict(state.items)
    changed = []
    for key, number, packed in delta.items:
        known = items.get(key)
        if not delta.base < number <= version or (known and known.version >= number):
            continue
        accepted, value = read(key, packed)
        if accepted:
            items.pop(key, None)
            items[key] = make_item(key, number, packed, value, now)
            changed.append(key)
        elif delta.base == 0 and key in state.items:
            items[key] = state.items[key]
    if delta.base == 0:
        changed += [key for key in state.items if key not in items]
    floor = delta.floor if delta.base == 0 else state.floor
    new = NodeState(
        state.node, state.incarnation, state.heartbeat, version, state.status, floor, items
    )
    return new, changed
