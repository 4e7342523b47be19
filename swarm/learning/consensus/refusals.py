"""Why a message about learning is not acted upon, counted by reason and by sender."""

from __future__ import annotations

from collections import Counter, OrderedDict
from enum import StrEnum

from swarm.errors import InvalidArgument

MOST_SENDERS = 1024  # senders whose refusals are counted; the one refused longest ago is forgotten


class Reason(StrEnum):
    """Reasons of a refusal. The first group is an honest network's, the others name a fault or a
    hostile sender."""

    GAP = "gap"
    REPLAYED = "replayed"
    OTHER_BASE = "other_base"
    OTHER_EPOCH = "other_epoch"
    NOT_A_NEIGHBOUR = "not_a_neighbour"

    TOO_LARGE = "too_large"
    TOO_FAST = "too_fast"
    MALFORMED = "malformed"
    OTHER_MODEL = "other_model"
    WRONG_SENDER = "wrong_sender"
    FORGED = "forged"
    NOT_ALLOWED = "not_allowed"
    BLOCKED = "blocked"
    UNKNOWN_TENSOR = "unknown_tensor"
    WRONG_SHAPE = "wrong_shape"
    NOT_FINITE = "not_finite"
    OUT_OF_RANGE = "out_of_range"
    UNSORTED = "unsorted"
    DUPLICATE = "duplicate"
    NORM_TOO_LARGE = "norm_too_large"
    UNAVAILABLE = "unavailable"


HARMLESS = frozenset(
    (Reason.GAP, Reason.REPLAYED, Reason.OTHER_BASE, Reason.OTHER_EPOCH, Reason.NOT_A_NEIGHBOUR)
)
"""Reasons that occur in a healthy fleet: after a loss, a return, a rollout, a rollback."""


class RefusedDelta(InvalidArgument):
    """A message that is not acted upon; nothing has changed."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class SenderRefusals:
    """How often each sender was refused, by reason."""

    def __init__(self) -> None:
        self.total: Counter[Reason] = Counter()
        self._senders: OrderedDict[str, Counter[Reason]] = OrderedDict()

    def count(self, sender: str, reason: Reason) -> int:
        """Count one refusal; returns how many this sender has had for this reason."""
        self.total[reason] += 1
        of_sender = self._senders.setdefault(sender, Counter())
        self._senders.move_to_end(sender)
        if len(self._senders) > MOST_SENDERS:
            self._senders.popitem(last=False)
        of_sender[reason] += 1
        return of_sender[reason]

    def by_sender(self) -> dict[str, dict[str, int]]:
        """Refusals of each sender by reason."""
        return {name: {str(r): n for r, n in c.items()} for name, c in self._senders.items()}
