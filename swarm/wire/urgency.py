"""The priority of a request: low, normal or high; in the code its *urgency*.

`priority` alone is the place of a node among those that serve a lane (`swarm.fleet.priorities`).
"""

from __future__ import annotations

from typing import Any

from swarm.errors import InvalidArgument

LOW, NORMAL, HIGH = -1, 0, 1
NAMES = {"low": LOW, "normal": NORMAL, "high": HIGH}
NAME_OF = {urgency: name for name, urgency in NAMES.items()}
# While requests of all three wait, of thirteen that go on eight are high, four normal and one low.
WEIGHTS = {HIGH: 8.0, NORMAL: 4.0, LOW: 1.0}
IN_USE_FOR = 10.0  # seconds for which priorities count as in use, after a request that had one
# By Triton's number, of which 1 is the highest. Another one, 0 among them, names none there.
_NUMBERED = ("", "high", "normal", "low")


def checked_priority(value: Any) -> str:
    """The name of a priority as a client says it: by its name, by the number that Triton's clients
    send, or "" for none. Raises `InvalidArgument`."""
    if isinstance(value, str) and (not value or value.lower() in NAMES):
        return value.lower()
    number = value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        number = int(value)
    if type(number) is not int or number < 0:
        raise InvalidArgument(
            f"priority {value!r:.80}: it is low, normal or high, or a number as Triton's clients "
            "send it (1 is high, 2 normal, 3 low)"
        )
    return _NUMBERED[number] if number < len(_NUMBERED) else ""


def room_for(most: int, urgency: int) -> int:
    """How many may be there before one of this urgency is refused, where others are beyond `most`:
    high ones find a quarter more."""
    return most + (max(1, most // 4) if urgency == HIGH else 0)


def urgency_of(priority: str) -> int:
    """The urgency of a `checked_priority`; "" is normal."""
    return NAMES[priority] if priority else NORMAL
