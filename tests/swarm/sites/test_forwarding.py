"""A site's answers: each once, in order, none lost, whatever fails on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from swarm.sites.forwarding import Forwarding, SiteProgress, beginning
from swarm.sites.turn import TAKE_OVER_AFTER, ForwarderTurn

WINDOW = 4


@dataclass
class Site:
    """The two streams of a site, as a server keeps them."""

    most: int  # requests that it holds; the oldest one goes
    submitted: dict[int, str] = field(default_factory=dict)
    last: int = 0
    answers: list[tuple[int, int, str]] = field(default_factory=list)  # number, dropped, text
    dropped: set[int] = field(default_factory=set)

    def submit(self) -> None:
        self.last += 1
        self.submitted[self.last] = f"request {self.last}"
        while len(self.submitted) > self.most:
            oldest = min(self.submitted)
            del self.submitted[oldest]
            if oldest > self.progress.answered:
                self.dropped.add(oldest)

    @property
    def progress(self) -> SiteProgress:
        last = self.answers[-1] if self.answers else None
        seen = None if last is None else SiteProgress(last[0], len(self.answers), last[1])
        return beginning(min(self.submitted, default=self.last + 1), seen, len(self.answers))

    def read(self, least: int, count: int) -> list[int]:
        return [number for number in sorted(self.submitted) if number >= least][:count]

    def store(self, number: int, after: int, dropped: int, text: str) -> bool:
        if after != len(self.answers):
            return False
        self.answers.append((number, dropped, text))
        return True

    def purge(self, answered: int) -> None:
        self.submitted = {n: text for n, text in self.submitted.items() if n > answered}


class Cuts(RuleBasedStateMachine):
    """Two forwarders, one site, and a link that loses whatever it likes."""

    @initialize(most=st.integers(2, 12))
    def begin(self, most: int) -> None:
        self.site = Site(most)
        self.forwarders = [Forwarding(WINDOW), Forwarding(WINDOW)]
        self.texts: list[dict[int, str]] = [{}, {}]

    @rule(count=st.integers(1, 5))
    def submit(self, count: int) -> None:
        for _ in range(count):
            self.site.submit()

    @rule(who=st.integers(0, 1), count=st.integers(1, 6))
    def read(self, who: int, count: int) -> None:
        forwarder = self.forwarders[who]
        for number in self.site.read(forwarder.next_number, min(count, forwarder.credit)):
            if forwarder.accept(number):
                self.texts[who][number] = self.site.submitted[number]

    @rule(who=st.integers(0, 1), pick=st.integers(0, 50))
    def compute(self, who: int, pick: int) -> None:
        waiting = sorted(self.texts[who])
        if waiting:
            number = waiting[pick % len(waiting)]
            text = self.texts[who].pop(number)
            self.forwarders[who].finished(number, f"answer to {text}".encode())

    @rule(who=st.integers(0, 1), arrive=st.integers(0, 5), acked=st.integers(0, 5))
    def publish(self, who: int, arrive: int, acked: int) -> None:
        """The first `arrive` reach the site, and the acks of the first `acked` of those come."""
        forwarder = self.forwarders[who]
        refused = False
        for at, (number, after, dropped, answer) in enumerate(forwarder.publications()):
            if at >= arrive:
                refused = True
                continue
            if not self.site.store(number, after, dropped, answer.decode()):
                refused = True
            elif at < acked:
                forwarder.stored(number, len(self.site.answers))
            else:
                refused = True
        if refused:
            self.resume(who)

    @rule(who=st.integers(0, 1))
    def resume(self, who: int) -> None:
        for number in self.forwarders[who].resume(self.site.progress):
            self.texts[who].pop(number, None)

    @rule(who=st.integers(0, 1))
    def restart(self, who: int) -> None:
        self.forwarders[who], self.texts[who] = Forwarding(WINDOW), {}
        self.resume(who)

    @rule(who=st.integers(0, 1))
    def purge(self, who: int) -> None:
        self.site.purge(self.forwarders[who].progress.answered)

    @invariant()
    def answers_are_right_in_order_and_once(self) -> None:
        if not hasattr(self, "site"):
            return
        numbers = [number for number, _, _ in self.site.answers]
        assert numbers == sorted(set(numbers))
        for number, dropped, text in self.site.answers:
            assert text == f"answer to request {number}"
            skipped = number - sum(n <= number for n in numbers)
            assert dropped == skipped

    def teardown(self) -> None:
        if not hasattr(self, "site"):
            return
        site = self.site
        self.restart(0)
        for _ in range(site.last + 3):
            self.read(0, WINDOW)
            for _ in range(WINDOW):
                self.compute(0, 0)
            self.publish(0, WINDOW, WINDOW)
            self.purge(0)
        answered = {number for number, _, _ in site.answers}
        assert set(range(1, site.last + 1)) - answered <= site.dropped, "none is lost"
        assert not site.submitted, "nothing that is answered is kept"


TestCuts = Cuts.TestCase
TestCuts.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(st.integers(1, 100), st.integers(0, 100))
def test_a_site_that_was_never_served_tells_how_many_it_has_dropped(first: int, more: int) -> None:
    forwarding = Forwarding()
    forwarding.resume(beginning(first, None, 0))
    for number in range(first, first + more + 1):
        assert forwarding.accept(number)
    forwarding.finished(first, b"x")
    (publication,) = forwarding.publications()
    assert publication == (first, 0, first - 1, b"x")


def test_answers_that_ended_by_age_are_no_reason_to_count_requests_as_dropped() -> None:
    assert beginning(41, None, 40) == SiteProgress(40, 40, 0)


def test_an_answer_waits_for_those_before_it() -> None:
    forwarding = Forwarding()
    for number in (1, 2, 3):
        forwarding.accept(number)
    forwarding.finished(3, b"c")
    forwarding.finished(2, b"b")
    assert forwarding.publications() == []
    forwarding.finished(1, b"a")
    assert [p.after for p in forwarding.publications()] == [0, 1, 2]
    assert forwarding.publications() == [], "each is published once"
    forwarding.stored(2, 2)
    assert forwarding.progress == SiteProgress(2, 2, 0)
    assert forwarding.in_hand == 1


def test_who_was_overtaken_rests_until_the_other_one_stands_still() -> None:
    turn = ForwarderTurn(0.0)
    turn.lost(1.0)
    for second in range(2, 20):
        turn.saw(tail=second, waiting=True, now=float(second))
        assert not turn.mine, "the other one works"
    turn.saw(tail=19, waiting=False, now=100.0)
    assert not turn.mine, "there is nothing to do"
    turn.saw(tail=19, waiting=True, now=101.0)
    turn.saw(tail=19, waiting=True, now=101.0 + TAKE_OVER_AFTER + 0.1)
    assert turn.mine
