"""The messages that a lane delivered here and that are not acked yet: they are in hand. Pure."""

from __future__ import annotations

from swarm.transport.lane.message import LaneMessage


class Unacked:
    """Messages by their number in the stream, in order of arrival.

    Some of them wait for another node's ack, and take no credit; the others are *at work*.
    `at_work`: the number of those.
    """

    __slots__ = ("_messages", "_off_credit", "at_work")

    def __init__(self) -> None:
        self.at_work = 0
        self._messages: dict[int, LaneMessage] = {}
        self._off_credit: set[int] = set()

    def __len__(self) -> int:
        return len(self._messages)

    def messages(self) -> list[LaneMessage]:
        return list(self._messages.values())

    def find(self, sequence: int) -> LaneMessage | None:
        """The message of this number, if it is in hand."""
        return self._messages.get(sequence)

    def has(self, message: LaneMessage) -> bool:
        """Whether this very message is in hand; another of its number does not count."""
        return self._messages.get(message.sequence) is message

    def add(self, message: LaneMessage) -> None:
        self._messages[message.sequence] = message
        self.at_work = len(self._messages) - len(self._off_credit)

    def remove(self, message: LaneMessage) -> bool:
        """False where it was not in hand."""
        sequence = message.sequence
        if self._messages.get(sequence) is not message:
            return False
        del self._messages[sequence]
        self._off_credit.discard(sequence)
        self.at_work = len(self._messages) - len(self._off_credit)
        return True

    def release_credit(self, message: LaneMessage) -> None:
        """It waits for another node's ack; it must be in hand."""
        self._off_credit.add(message.sequence)
        self.at_work = len(self._messages) - len(self._off_credit)

    def take_credit(self, message: LaneMessage) -> None:
        """It is at work again."""
        self._off_credit.discard(message.sequence)
        self.at_work = len(self._messages) - len(self._off_credit)

    def untouched_since(self, ns: int) -> list[LaneMessage]:
        """Messages of which the server has heard nothing since `ns` (`LaneMessage.touched`)."""
        return [message for message in self._messages.values() if message.touched <= ns]

    def clear(self) -> None:
        self._messages.clear()
        self._off_credit.clear()
        self.at_work = len(self._messages) - len(self._off_credit)
