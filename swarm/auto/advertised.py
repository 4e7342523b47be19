"""What nodes of role `auto` gossip of themselves.

room        bytes that it has for stages, those that it holds included
fills/T     [model, version, number, slot]      it fills this slot of the plan of this number
pace/T      [model, version, [us, …]]           microseconds of each stage on it, from stage 1
link        [round trip in us, bytes a second down, up]    absent where it is fast
pools       [[name, bytes], …]      memories that it shares with other nodes; absent: none
uses        [[model, version, priority, bytes claimed, bytes held], …]    each version it may serve
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from swarm.auto.rooms import RoomUse
from swarm.fleet.advertised import MAX_TIME, version_tag
from swarm.routing.desired import MOST_PRIORITY
from swarm.subjects import TOKEN

LONGEST_PACE = 128  # stages: 5 bytes each at most
MOST_POOLS, MOST_USES = 4, 16
LONGEST_POOL = 200  # characters of a name
MOST_ROOM = 1 << 60  # bytes


# --- written ------------------------------------------------------------------------------


def fills_entry(model: str, version: str, number: int, slot: int) -> tuple[str, list[Any]]:
    """The key and value by which a node tells which slot it fills of the plan of that number."""
    return f"fills/{version_tag(model, version)}", [model, version, number, slot]


def pace_entry(model: str, version: str, pace_us: Sequence[int]) -> tuple[str, list[Any]]:
    """The key and value by which a node tells how long each stage takes on it, microseconds."""
    pace = [min(max(1, us), MAX_TIME) for us in pace_us[:LONGEST_PACE]]
    return f"pace/{version_tag(model, version)}", [model, version, pace]


def uses_entry(uses: Iterable[RoomUse]) -> list[list[Any]]:
    """The value by which a node tells what each version takes here. Of more versions than one may
    tell of, the last one counts the rest."""
    rows: list[list[Any]] = [[u.model, u.version, u.priority, u.claimed, u.held] for u in uses]
    for row in rows[MOST_USES:]:
        rows[MOST_USES - 1][3] += row[3]
        rows[MOST_USES - 1][4] += row[4]
    return rows[:MOST_USES]


# --- judged -------------------------------------------------------------------------------


def valid_room(_: str, value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_ROOM


def valid_pools(_: str, value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) <= MOST_POOLS
        and all(
            isinstance(row, list | tuple)
            and len(row) == 2
            and isinstance(row[0], str)
            and len(row[0]) <= LONGEST_POOL
            and valid_room("", row[1])
            for row in value
        )
    )


def valid_uses(_: str, value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) <= MOST_USES
        and all(isinstance(row, list | tuple) and len(row) == 5 and _is_use(row) for row in value)
    )


def _is_use(row: Sequence[Any]) -> bool:
    model, version, priority, *sizes = row
    return (
        _is_of(model, version, version_tag(str(model), str(version)))
        and type(priority) is int
        and abs(priority) <= MOST_PRIORITY
        and all(valid_room("", size) for size in sizes)
    )


def valid_link(_: str, value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) == 3
        and all(type(number) is int and 0 <= number < 1 << 60 for number in value)
    )


def valid_fills(tag: str, value: object) -> bool:
    if not (isinstance(value, list | tuple) and len(value) == 4):
        return False
    model, version, *numbers = value
    return _is_of(model, version, tag) and all(
        type(number) is int and 0 <= number < 1 << 62 for number in numbers
    )


def valid_pace(tag: str, value: object) -> bool:
    if not (isinstance(value, list | tuple) and len(value) == 3):
        return False
    model, version, pace = value
    return (
        _is_of(model, version, tag)
        and isinstance(pace, list | tuple)
        and len(pace) <= LONGEST_PACE
        and all(type(us) is int and 1 <= us <= MAX_TIME for us in pace)
    )


def _is_of(model: object, version: object, tag: str) -> bool:
    return (
        isinstance(model, str)
        and isinstance(version, str)
        and TOKEN.fullmatch(model) is not None
        and TOKEN.fullmatch(version) is not None
        and tag == version_tag(model, version)
    )


# --- read ---------------------------------------------------------------------------------


def fills_of(values: Mapping[str, object], model: str, version: str) -> tuple[int, int] | None:
    """The number of the plan, and the slot of it, that a node fills."""
    entry = values.get(f"fills/{version_tag(model, version)}")
    return (entry[2], entry[3]) if isinstance(entry, list | tuple) else None


def pace_of(values: Mapping[str, object], model: str, version: str) -> tuple[int, ...]:
    """Microseconds of each stage on a node; () where it has not measured them."""
    entry = values.get(f"pace/{version_tag(model, version)}")
    return tuple(entry[2]) if isinstance(entry, list | tuple) else ()


def pools_of(values: Mapping[str, object], node: str) -> list[tuple[str, int]]:
    """The memories that a node takes from, and the bytes of each; one that shares none has one of
    its own."""
    pools = values.get("pools")
    if isinstance(pools, list | tuple) and pools:
        return [(str(name), int(size)) for name, size in pools]
    room = values.get("room")
    return [(node, room if isinstance(room, int) else 0)]


def uses_of(values: Mapping[str, object], node: str) -> list[RoomUse] | None:
    """What each version takes at a node; None where it does not tell."""
    rows = values.get("uses")
    return [RoomUse(node, *row) for row in rows] if isinstance(rows, list | tuple) else None
