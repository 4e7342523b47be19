"""What nodes of role `auto` gossip of themselves.

room        bytes that it has for stages, those that it holds included
fills/T     [model, version, number, slot]      it fills this slot of the plan of this number
pace/T      [model, version, [us, …]]           microseconds of each stage on it, from stage 1
link        [round trip in us, bytes a second down, up]    absent where it is fast
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from swarm.fleet.advertised import MAX_TIME, version_tag
from swarm.subjects import TOKEN

LONGEST_PACE = 128  # stages: 5 bytes each at most


# --- written ------------------------------------------------------------------------------


def fills_entry(model: str, version: str, number: int, slot: int) -> tuple[str, list[Any]]:
    """The key and value by which a node tells which slot it fills of the plan of that number."""
    return f"fills/{version_tag(model, version)}", [model, version, number, slot]


def pace_entry(model: str, version: str, pace_us: Sequence[int]) -> tuple[str, list[Any]]:
    """The key and value by which a node tells how long each stage takes on it, microseconds."""
    pace = [min(max(1, us), MAX_TIME) for us in pace_us[:LONGEST_PACE]]
    return f"pace/{version_tag(model, version)}", [model, version, pace]


# --- judged -------------------------------------------------------------------------------


def valid_room(_: str, value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 60


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
