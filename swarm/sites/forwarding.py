"""Which of a site's requests are computed, and which answer is stored next. Pure.

The order of answers is the order of requests. Each answer is published with the sequence that the
stream of answers must have: the server stores none twice and none out of order, whatever was lost
on the way and however many forwarders there are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class SiteProgress(NamedTuple):
    """How far a site's work has come, as its streams tell it.

    answered: the number of the last request that has an answer. tail: the sequence of the last
    answer. dropped: requests that the site dropped before that answer, because its store was full.
    """

    answered: int = 0
    tail: int = 0
    dropped: int = 0


class Publication(NamedTuple):
    """An answer to be stored. after: the sequence that the stream of answers must have; dropped: as
    in `SiteProgress`, for this answer."""

    number: int
    after: int
    dropped: int
    answer: bytes


@dataclass(slots=True)
class _Job:
    answer: bytes | None = None
    under_way: bool = False


@dataclass(slots=True)
class Forwarding:
    """The requests in hand. window: at most so many.

    Every change of the site's streams by somebody else is found by the refusal of a publication,
    or by the loss of its ack; then `resume` is called with what the streams say.
    """

    window: int = 32
    progress: SiteProgress = field(default_factory=SiteProgress)
    _jobs: dict[int, _Job] = field(default_factory=dict)  # by number, in order
    _next: int = 1

    @property
    def next_number(self) -> int:
        """The least number that has not been read."""
        return self._next

    @property
    def credit(self) -> int:
        """How many more requests may be read now."""
        return max(0, self.window - len(self._jobs))

    @property
    def in_hand(self) -> int:
        return len(self._jobs)

    def resume(self, progress: SiteProgress) -> list[int]:
        """Go on from what the streams say; returns the numbers in hand that somebody else has
        answered. Answers that were computed are kept, and published anew."""
        self.progress = progress
        passed = [number for number in self._jobs if number <= progress.answered]
        for number in passed:
            del self._jobs[number]
        for job in self._jobs.values():
            job.under_way = False
        self._next = max(progress.answered, *self._jobs, 0) + 1
        return passed

    def accept(self, number: int) -> bool:
        """A request was read, in the order of numbers; whether it is to be computed."""
        if number < self._next:
            return False
        self._next = number + 1
        self._jobs[number] = _Job()
        return True

    def finished(self, number: int, answer: bytes) -> None:
        """A request was computed. One that somebody else has answered meanwhile is forgotten."""
        if (job := self._jobs.get(number)) is not None:
            job.answer = answer

    def publications(self) -> list[Publication]:
        """The answers that may be published now, in order; each is returned once, until `resume`.

        A gap between two numbers is requests that the site dropped: whatever is read comes in
        order, so a number that was skipped does not come any more.
        """
        ready: list[Publication] = []
        before, after, dropped = self.progress
        for number, job in self._jobs.items():
            dropped += number - before - 1
            before = number
            if job.answer is None:
                break
            if not job.under_way:
                job.under_way = True
                ready.append(Publication(number, after, dropped, job.answer))
            after += 1
        return ready

    def stored(self, number: int, sequence: int) -> None:
        """The site has stored an answer, and so all before it."""
        if number <= self.progress.answered:
            return
        before, _, dropped = self.progress
        for each in [each for each in self._jobs if each <= number]:
            del self._jobs[each]
            dropped += each - before - 1
            before = each
        self.progress = SiteProgress(number, sequence, dropped)


def dropped_so_far(progress: SiteProgress, first: int) -> int:
    """Requests that the site has dropped, those among them that no answer tells of yet. first: as
    of `beginning`: what is neither answered nor there any more was dropped."""
    return progress.dropped + max(0, first - 1 - progress.answered)


def beginning(first: int, last_answer: SiteProgress | None, tail: int) -> SiteProgress:
    """Where a forwarder begins.

    first: the least number that the site still has, or will give. last_answer: None where no answer
    is left in the stream. tail: the last sequence of the stream of answers, 0 where there never was
    one.
    """
    if last_answer is not None:
        return last_answer
    if tail == 0:
        return SiteProgress()  # all that is missing was dropped
    return SiteProgress(first - 1, tail, 0)  # answers are deleted by age only: theirs were read
