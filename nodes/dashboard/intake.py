"""What is taken of the messages that come: statuses and events are of strangers.

Anybody who may publish a status may publish nonsense, and as much of it as the network carries. A
message that is too large, or of a sender that speaks too often, is not even parsed. Its sender is
remembered as an offender, with the reason, so that people see who it was.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from nodes.dashboard.facts import one_line
from swarm.flow.bucket import TokenBucket
from swarm.subjects import TOKEN

MOST_BYTES = 128 << 10  # of a status; one of eight stages has 4 KB
STATUSES_PER_SECOND, STATUSES_AT_ONCE = 10.0, 40.0  # of one node; it means to send one a second
EVENTS_PER_SECOND, EVENTS_AT_ONCE = 200.0, 2000.0  # of all nodes together
MOST_SENDERS = 4096  # whose pace is watched
MOST_OFFENDERS = 50  # that are shown; the oldest are forgotten
FORGET_OFFENCE_AFTER = 60.0  # seconds
LONGEST_NAME = 80  # characters of a sender that are shown
NO_DOCUMENT = (ValueError, TypeError, ArithmeticError, RecursionError, KeyError, AttributeError)


@dataclass(slots=True)
class Offence:
    """The last reason why messages of a sender were not believed, and how many they were."""

    reason: str
    count: int
    at: float  # seconds, of the reader's clock


class Intake:
    """Decides which messages are read. `offenders`: by the sender's name, as far as it shows."""

    def __init__(self) -> None:
        self.offenders: OrderedDict[str, Offence] = OrderedDict()
        self._pace: OrderedDict[str, TokenBucket] = OrderedDict()
        self._events = TokenBucket(EVENTS_PER_SECOND, EVENTS_AT_ONCE)

    def status(self, subject: str, data: bytes | memoryview, now: float) -> dict[str, Any] | None:
        """The status document of a message, whose field `node` is the subject's last token; None
        where the message is not believed. now: seconds."""
        sender = subject.rpartition(".")[2]
        if not self._in_pace(sender, now):
            return self._refused(sender, "too many messages", now)
        if len(data) > MOST_BYTES:
            return self._refused(sender, f"a status of {len(data) >> 10} KiB", now)
        if TOKEN.fullmatch(sender) is None:
            return self._refused(sender, "an id that no node may have", now)
        document = parsed(data)
        if document is None:
            return self._refused(sender, "a status that is no JSON object", now)
        if document.get("node") != sender:
            return self._refused(sender, "a status in the name of another", now)
        return document

    def event(self, subject: str, data: bytes | memoryview, now: float) -> dict[str, Any] | None:
        """The document of an event, with its kind by the subject; None where it is not believed."""
        kind = subject.rpartition(".")[2]
        if not self._events.take(now):
            return self._refused("events", "too many events", now)
        if len(data) > MOST_BYTES or TOKEN.fullmatch(kind) is None:
            return self._refused(f"events.{kind}", "an event that no node sends", now)
        document = parsed(data)
        if document is None:
            return self._refused(f"events.{kind}", "an event that is no JSON object", now)
        return document | {"kind": kind}

    def note(self, sender: str, reason: str, now: float) -> None:
        """A sender was not believed in something that it said."""
        name = one_line(sender[:LONGEST_NAME])
        offence = self.offenders.get(name)
        if offence is None:
            while len(self.offenders) >= MOST_OFFENDERS:
                self.offenders.popitem(last=False)
            self.offenders[name] = Offence(reason, 1, now)
        else:
            offence.reason, offence.at = reason, now
            offence.count += 1
            self.offenders.move_to_end(name)

    def forgive(self, now: float) -> bool:
        """Forget offences that are long over; returns whether there were any."""
        over = [n for n, o in self.offenders.items() if now - o.at > FORGET_OFFENCE_AFTER]
        for name in over:
            del self.offenders[name]
        return bool(over)

    def _refused(self, sender: str, reason: str, now: float) -> dict[str, Any] | None:
        self.note(sender, reason, now)
        return None

    def _in_pace(self, sender: str, now: float) -> bool:
        pace = self._pace.get(sender)
        if pace is None:
            while len(self._pace) >= MOST_SENDERS:
                self._pace.popitem(last=False)
            pace = self._pace[sender] = TokenBucket(STATUSES_PER_SECOND, STATUSES_AT_ONCE)
        return pace.take(now)


def parsed(data: bytes | memoryview) -> dict[str, Any] | None:
    """A JSON object; None where the bytes are none."""
    try:
        document = json.loads(bytes(data))
    except NO_DOCUMENT:
        return None
    return document if isinstance(document, dict) else None
