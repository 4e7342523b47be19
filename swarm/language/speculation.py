"""Drafts of the next tokens, from a session's own text or of a draft model; whether they pay. Pure.

A draft is what followed the last two or three ids where they occurred before (prompt lookup), or
what a small model says. The last stage chooses each token as it would without drafts, and a round
ends at the first one that is no draft: a draft changes the time of a token, and not the token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from swarm.flow.latency import Usual

LENGTHS = (3, 2)  # ids that have to occur again, the most first
SAMPLES = 4  # rounds of either kind, before they are compared
PLAIN_EVERY = 16  # rounds with drafts, behind which one without is timed
FIRST_PAUSE, LONGEST_PAUSE = 32, 1024  # rounds without drafts where they do not pay
MARGIN = 1.05  # so many times as fast drafts have to be
# Seconds that a round waits for a draft model at least and at most; between them, the rounds that
# all its drafts would save.
LEAST_WAIT, MOST_WAIT = 0.01, 0.25


class Drafter(Protocol):
    """Of one session."""

    def draft(self, ids: Sequence[int], most: int) -> tuple[int, ...]:
        """What may follow `ids`, of `most` ids at most."""
        ...


class Lookup:
    """Where short sequences of one session's ids occurred last."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}
        self._read = 0

    def draft(self, ids: Sequence[int], most: int) -> tuple[int, ...]:
        """See `Drafter`."""
        for end in range(self._read, len(ids)):
            for length in LENGTHS:
                if end >= length:
                    self._ends[tuple(ids[end - length : end])] = end
        self._read = len(ids)
        for length in LENGTHS:
            found = self._ends.get(tuple(ids[-length:]))
            if found is not None and most > 0:
                return tuple(ids[found : found + most])
        return ()


@dataclass(slots=True)
class DraftQuestion:
    """A draft model was asked at `at` what follows `known` ids. until: when it is late. ids: its
    answer, None before that."""

    known: int
    at: float
    until: float
    ids: tuple[int, ...] | None = None


class Benefit:
    """Of drafts from one source: rounds with them beside rounds without, by tokens and seconds."""

    def __init__(self) -> None:
        self._plain, self._drafted, self._tokens = Usual(), Usual(), Usual()
        self._timed = [0, 0]  # rounds without and with drafts, since the last pause
        self._skip, self._pause = 0, FIRST_PAUSE

    @property
    def pays(self) -> bool:
        """Whether drafts are faster, as far as is known."""
        if min(self._timed) < SAMPLES:
            return True
        return self._tokens.ewma * self._plain.ewma >= MARGIN * self._drafted.ewma

    @property
    def wants_drafts(self) -> bool:
        """Whether the next round is one with drafts."""
        plain, drafted = self._timed
        return self._skip == 0 and (plain >= SAMPLES or drafted < SAMPLES)

    def ended(self, seconds: float, tokens: int, drafted: bool) -> None:
        """A round has ended, of which so many tokens came."""
        self._skip = max(0, self._skip - 1)
        if not drafted:
            self._plain.add(seconds)
            self._timed[0] += 1
            return
        self._drafted.add(seconds)
        self._tokens.add(float(tokens))
        self._timed[1] += 1
        if not self.pays:
            self._skip, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
            self._timed = [0, 0]
        elif self._timed[1] % PLAIN_EVERY == 0:
            self._pause, self._skip = FIRST_PAUSE, 1


class Speculation:
    """The rounds of one node of stage 1, by the source of their drafts: `lookup` and `model`.
    has_model: there is a draft model. reading: it is at work."""

    def __init__(self, has_model: bool) -> None:
        self.lookup, self.model = Benefit(), Benefit()
        self.has_model, self.reading = has_model, False

    @property
    def asks_model(self) -> bool:
        """Whether the draft model is to be asked for the next round's drafts."""
        return self.has_model and not self.reading and self.model.wants_drafts

    def ended(self, seconds: float, tokens: int, source: Benefit | None) -> None:
        """A round has ended, of which so many tokens came. source: of its drafts, None where
        nobody was asked for any."""
        if source is not None:
            source.ended(seconds, tokens, True)
            return
        for each in (self.lookup, self.model):
            each.ended(seconds, tokens, False)


def waits(round_: float, most: int) -> float:
    """Seconds in which a draft model has to answer. round_: seconds of a usual round."""
    return min(max(round_ * most, LEAST_WAIT), MOST_WAIT)
