"""Handed over to a node of this host: stored only if that does not soon say that it is done."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from stage_bench import (
    POISON,
    SPEC,
    Bench,
    FakeDelivery,
    FakeDirect,
    FakeLane,
    FakeLink,
    FakeModel,
    FakePublisher,
)

from nodes.stage.intake import KEPT, STALE
from nodes.stage.outbox import Outbox
from nodes.stage.server import AT_HAND, HANDED
from swarm.errors import NotConnected, ResourceExhausted, Status
from swarm.fleet.placement import Nearby
from swarm.lanes import DONE, PASSED_ON, REFUSED
from swarm.local.host_socket import LARGEST
from swarm.local.lending import Lent
from swarm.model import ModelInfo, Stage
from swarm.shm import Claim
from swarm.subjects import Subjects
from swarm.transport.handover import (
    AHEAD,
    ANSWER,
    HELD,
    LATE,
    LEAST,
    LONGEST,
    MANY,
    MOST,
    MOST_BEFORE,
    QUIET,
    REFUSED_FOR,
    REFUSED_MOST,
    REST,
    SHORT,
    SILENT,
)
from swarm.wire.tensors import Claimed

NEXT = "_INBOX.next"
BEFORE = "_INBOX.before.7"  # where the stage before waits for a word
STORED_BY = 5.0  # seconds; a machine may stand still for a while


@pytest.fixture
async def bench() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(model: FakeModel | None = None, stage: int = 1, **options: Any) -> Bench:
        b = Bench(model or FakeModel(compute_ms=0.01), stage=stage, **options)
        b.near = Nearby(inboxes={"any": NEXT})
        made.append(b)
        return b

    yield make
    for each in made:
        each.server.close()


def handed(b: Bench, data: bytes, ago_ns: int = 0) -> bytes:
    """What the datagram of the stage before does."""
    b.server.intake.came(data, time.monotonic_ns() - ago_ns, BEFORE)
    return data


def later(b: Bench, budget: float) -> bytes:
    """The last message as it is stored when it was late: with less budget."""
    b.number -= 1
    return b.message(budget=budget)


async def stored(b: Bench, count: int = 1) -> None:
    async with asyncio.timeout(STORED_BY):
        while len(b.publisher.stored) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def ended(*copies: FakeDelivery) -> list[str]:
    async with asyncio.timeout(5):
        while not all(copy.settled for copy in copies):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    return [copy.ended for copy in copies]


def lending(b: Bench) -> Bench:
    """All that it sends is lent, and the next node can map it."""
    b.claims.large = True
    b.near = Nearby(shared=True, inboxes={"any": NEXT})
    return b


def runs_take(b: Bench, seconds: float) -> None:
    b.server.stats.compute = SimpleNamespace(ewma=seconds, add=lambda *_: None)  # type: ignore[assignment]


# --- who hands over -------------------------------------------------------------------


async def test_what_the_next_node_says_to_be_done_is_acked_and_never_stored(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    copy = b.send(3.0)
    [(inbox, features, reply)] = b.direct.sent
    assert (inbox, features.stage, features.tensors["x"].tolist()) == (NEXT, 2, [[4.0] * 4])
    assert not copy.settled, "until it is known to be safe"
    assert copy.held_at, "which takes no credit"
    b.direct.say(reply, DONE)
    assert copy.ended == "ack"
    await asyncio.sleep(2 * MOST)
    assert b.publisher.tries == 0
    assert b.server.stats.counters.served == b.server.stats.counters.handed_over == 1
    assert b.link.expected == {}


async def test_what_the_next_node_refuses_is_stored_at_once(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.publisher.hold = True
    copy = b.send()
    b.direct.say(b.direct.sent[0][2], REFUSED)
    assert [features.stage for _, features in b.publisher.stored] == [2]
    assert not copy.settled
    assert not copy.held_at, "a full lane holds up the stages before it"
    b.publisher.release(None)
    assert copy.ended == "ack"
    other = b.send()  # a node that refused is left alone for a moment
    assert len(b.direct.sent) == 1
    b.near = Nearby(inboxes={"any": "_INBOX.third"})
    b.send()
    assert len(b.direct.sent) == 2, "another one is not"
    b.publisher.release(None)
    assert await ended(other) == ["ack"]


async def test_what_nobody_says_to_be_done_is_stored_with_the_budget_that_is_left(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    b.publisher.hold = True
    copy = b.send(3.0)
    await stored(b)
    [(_, late)] = b.publisher.stored
    [(_, first, reply)] = b.direct.sent
    assert (late.message_id, late.hops) == (first.message_id, first.all_hops)
    assert late.tensors["x"].tolist() == first.tensors["x"].tolist()
    assert first.budget_us - late.budget_us >= 1000
    b.direct.say(reply, DONE)  # too late to spare the lane: its word counts
    assert not copy.settled
    b.publisher.release(None)
    assert copy.ended == "ack"
    assert b.server.stats.counters.served == 1


async def test_a_node_that_cannot_be_reached_costs_no_wait(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.direct.full = True
    copy = b.send()
    assert len(b.publisher.stored) == 1
    assert await ended(copy) == ["ack"]
    assert b.server.stats.counters.handed_over == 0
    assert b.link.expected == {}


async def test_many_short_runs_are_all_handed_over(bench: Callable[..., Bench]) -> None:
    b = bench()
    copies = [b.send() for _ in range(100)]
    assert (len(b.direct.sent), len(b.publisher.stored)) == (100, 0)
    for _, _, reply in b.direct.sent:
        b.direct.say(reply, DONE)
    assert {copy.ended for copy in copies} == {"ack"}


async def test_what_no_datagram_holds_is_stored_and_says_nothing_of_the_next(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    large = b.send(tensors={"x": np.zeros((1, LARGEST // 4), np.float32)})
    assert (b.direct.sent, len(b.publisher.stored)) == ([], 1)
    assert await ended(large) == ["ack"]
    assert not large.held_at
    b.send()
    assert len(b.direct.sent) == 1


@pytest.mark.parametrize(("usual", "most"), [(AHEAD / 100, 100), (AHEAD / 50, 50)])
async def test_no_more_is_handed_over_than_is_done_in_time(
    bench: Callable[..., Bench], usual: float, most: int
) -> None:
    b = bench()
    runs_take(b, usual)
    for _ in range(most + 5):
        b.send()
    assert abs(len(b.direct.sent) - most) <= 1
    b.direct.say(b.direct.sent[0][2], DONE)
    before = len(b.direct.sent)
    b.send()
    assert len(b.direct.sent) == before + 1, "there is room again"


async def test_who_handed_over_before_waits_for_those_who_did_behind_it() -> None:
    """Of one stage that is stopped, the one before it stores what it had, and no other."""
    assert MANY > MOST

    def many(stage: int, last: int) -> float:
        info = ModelInfo("m", "1", SPEC, SPEC, (Stage(last, SPEC, SPEC, 1.0),) * last)
        link = FakeLink()
        direct = FakeDirect(link)
        out = Outbox(link, Subjects("t"), FakePublisher(), info, stage, "n", direct=direct)  # type: ignore[arg-type]
        return out._handovers.many

    for last in (2, 3, 8):
        waits = [many(stage, last) for stage in range(1, last)]
        assert waits == sorted(waits, reverse=True)
        assert len(set(waits)) == len(waits)
        assert min(waits) > MANY / 2
        assert max(waits) <= MANY


async def test_what_goes_with_a_burst_is_stored_when_its_sending_fails(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    b.link.bursting = b.direct.full = True
    copies = [b.send() for _ in range(5)]
    assert b.publisher.stored == []
    b.direct.flush()
    assert len(b.publisher.stored) == 5
    assert await ended(*copies) == ["ack"] * 5
    assert b.server.stats.counters.handed_over == 0
    assert b.link.expected == {}


async def test_a_process_that_has_ended_gives_back_at_once_what_it_was_handed(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    copies = [b.send() for _ in range(3)]
    b.near = Nearby(inboxes={"any": "_INBOX.third"})
    other = b.send()
    [gone] = b.direct.on_gone
    gone(NEXT)
    assert len(b.publisher.stored) == 3
    assert await ended(*copies) == ["ack"] * 3
    assert not other.settled, "another node has it"
    await b.server.drain(0.1)
    assert b.direct.on_gone == []


async def test_more_at_once_are_waited_for_longer_and_say_nothing_of_a_lone_one(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    waits = b.server.out._handovers
    for _ in range(60):
        b.send()
        b.direct.say(b.direct.sent[-1][2], DONE)
    lone = waits.patience
    b.link.bursting = True
    copies = [b.send(), b.send()]
    b.direct.flush()
    assert [h.until - h.since for h in waits._held.values()] == pytest.approx([waits.many] * 2)
    await asyncio.sleep(lone + 0.005)
    assert waits.patience == lone
    for _, _, reply in b.direct.sent[-2:]:
        b.direct.say(reply, DONE)
    assert await ended(*copies) == ["ack", "ack"]
    assert waits.patience == lone


async def test_a_burst_that_is_late_is_late_once(bench: Callable[..., Bench]) -> None:
    b = bench()
    for _ in range(4 * LATE):
        b.send()
    await stored(b, 4 * LATE)
    b.send()
    assert len(b.direct.sent) == 4 * LATE + 1, "handed over still"


@pytest.mark.parametrize("seconds", [3 * SHORT, 0.026, 0.2])
async def test_of_long_runs_a_second_is_handed_over_and_waited_for_as_long_as_all_take(
    bench: Callable[..., Bench], seconds: float
) -> None:
    b = bench()
    waits = b.server.out._handovers
    runs_take(b, seconds)
    most = min(HELD, int(LONGEST / 2 / seconds))
    copies = [b.send() for _ in range(most + 4)]
    assert len(b.direct.sent) == most
    assert len(b.publisher.stored) == 4
    runs = [(h.until - h.since - LEAST) / seconds for h in waits._held.values()]
    assert runs == pytest.approx([2 * (number + 1) for number in range(most)])
    for _, _, reply in b.direct.sent:
        b.direct.say(reply, DONE)
    assert await ended(*copies) == ["ack"] * len(copies)
    assert waits._timer is None, "nothing is held: nothing is looked for"
    b.send()
    assert len(b.direct.sent) == most + 1


async def test_of_long_runs_one_that_lives_and_is_late_rests_for_as_long_as_it_was_waited_for(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    waits = b.server.out._handovers
    runs_take(b, 0.020)
    rests = []
    for number in range(1, 5):
        waits._stored.clear()
        b.send()
        [handed] = waits._held.values()
        answered = len(b.direct.asked)
        async with asyncio.timeout(STORED_BY):
            while len(b.publisher.stored) < number:
                for _, reply in b.direct.asked[answered:]:
                    answered += 1
                    b.direct.say(reply, b"")
                await asyncio.sleep(0.001)
        until, seconds = waits._pauses[NEXT]
        assert until > time.monotonic() + seconds / 2
        rests.append(seconds / (handed.until - handed.since))
        waits._pauses[NEXT] = (time.monotonic(), seconds)  # it is over
    assert rests == pytest.approx([1, 2, 4, 8])
    b.send()
    b.direct.say(b.direct.sent[-1][2], DONE)
    assert waits._pauses == {}, "a word in time ends it"


async def test_of_long_runs_what_was_stored_lately_is_waited_for_too(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    waits = b.server.out._handovers
    runs_take(b, 0.020)

    def waited_for() -> float:
        b.send()
        reply, last = list(waits._held.items())[-1]
        b.direct.say(reply, DONE)
        return (last.until - last.since - LEAST) / 0.020

    alone = waited_for()
    for _ in range(3):
        b.send()
        b.direct.say(b.direct.sent[-1][2], REFUSED)
        waits._pauses[NEXT] = (0.0, REFUSED_FOR)
    assert len(b.publisher.stored) == 3
    assert waited_for() == pytest.approx(alone + 2 * 3)
    waits._pauses[NEXT] = (time.monotonic() + 60, 60)
    copies = [b.send() for _ in range(100)]
    waits._pauses.clear()
    assert waited_for() == pytest.approx(alone + 2 * MOST_BEFORE / 0.020)
    waits._stored = deque(moment - REST for moment in waits._stored)
    assert waited_for() == pytest.approx(alone), "they are done by now"
    assert await ended(*copies) == ["ack"] * 100


async def asked(b: Bench, times: int) -> str:
    """Where the answer to the question whether the next node lives is waited for."""
    async with asyncio.timeout(STORED_BY):
        while len(b.direct.asked) < times:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert len(b.direct.asked) == times
    return b.direct.asked[-1][1]


async def test_of_long_runs_who_says_nothing_is_asked_and_who_does_not_answer_keeps_no_queue(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    runs_take(b, 0.020)
    copies = [b.send() for _ in range(20)]
    await asked(b, 1)
    waits = b.server.out._handovers
    first, *_, last = waits._held.values()
    silence = time.monotonic() - first.since
    assert silence >= QUIET * 0.020
    assert b.publisher.stored == [], "it may have much to do"
    assert waits._due(last) == waits._asked[NEXT][0] + ANSWER
    await stored(b, 20)
    assert time.monotonic() < last.until or time.monotonic() - first.since > 2 * silence + ANSWER
    assert await ended(*copies) == ["ack"] * 20
    assert b.direct.asked == [(NEXT, b.direct.asked[0][1])]
    assert b.link.expected == {}
    assert waits._asked == waits._heard == {}
    b.send()
    assert len(b.direct.sent) == 20, "nothing more, for a while"
    waits._pauses.clear()
    b.send()
    [again] = waits._held.values()
    assert waits._due(again) == again.since + again.quiet, "later it is asked anew"


async def test_of_long_runs_who_lives_is_left_to_them_for_as_long_as_they_take(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    seconds = SILENT / 4
    runs_take(b, seconds)
    copies = [b.send() for _ in range(40)]
    waits = b.server.out._handovers
    *_, last = waits._held.values()
    assert last.quiet == SILENT
    assert last.until - last.since > 10 * SILENT
    for times in (1, 2, 3):
        reply = await asked(b, times)
        before = time.monotonic()
        b.direct.say(reply, b"")
        assert waits._due(last) >= min(last.until, before + SILENT)
        assert last in waits._held.values()
    before = time.monotonic()
    b.direct.say(b.direct.sent[-2][2], DONE)
    assert waits._due(last) >= min(last.until, before + SILENT), "a word is a sign of life too"
    waits._lives(NEXT, last.until)
    assert waits._due(last) == last.until, "but each is done some time"
    for _, _, reply in b.direct.sent:
        b.direct.say(reply, DONE)
    assert await ended(*copies) == ["ack"] * 40
    assert b.link.expected == {}


async def test_of_long_runs_a_word_puts_off_the_look_for_silence(
    bench: Callable[..., Bench],
) -> None:
    """A look in vain would be a turn of the loop, and nothing but that."""
    b = bench()
    runs_take(b, 0.2)
    copies = [b.send() for _ in range(4)]
    waits = b.server.out._handovers
    for _, _, reply in b.direct.sent[:-1]:
        await asyncio.sleep(0.2)
        waits._put_off = True  # the last look came late
        before = time.monotonic()
        b.direct.say(reply, DONE)
        assert waits._planned >= before + QUIET * 0.2
        assert waits._planned == min(map(waits._due, waits._held.values()))
        assert not waits._put_off, "the next look may come late too"
    b.direct.say(b.direct.sent[-1][2], DONE)
    assert waits._timer is None
    assert b.direct.asked == []
    assert await ended(*copies) == ["ack"] * 4


async def test_of_long_runs_words_do_not_put_off_the_look_at_another_node(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    runs_take(b, 0.2)
    b.send()
    b.near = Nearby(inboxes={"any": "_INBOX.third"})
    b.send()
    b.send()
    waits = b.server.out._handovers
    await asyncio.sleep(0.2)
    planned = waits._planned
    b.direct.say(b.direct.sent[1][2], DONE)
    assert waits._planned == planned == min(map(waits._due, waits._held.values()))
    await asked(b, 1)
    assert b.direct.asked[0][0] == NEXT


async def test_of_long_runs_a_node_that_has_ended_is_found_out_by_the_question(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    runs_take(b, 0.1)
    copies = [b.send() for _ in range(3)]
    b.direct.gone.add(NEXT)
    before = time.monotonic()
    await asked(b, 1)
    assert len(b.publisher.stored) == 3, "at once"
    assert time.monotonic() - before >= QUIET * 0.1 - 0.01
    assert await ended(*copies) == ["ack"] * 3
    assert b.link.expected == {}


async def test_of_long_runs_one_node_does_not_answer_for_another(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    runs_take(b, SILENT)
    hung = b.send()
    b.near = Nearby(inboxes={"any": "_INBOX.third"})
    copies = [b.send() for _ in range(9)]
    async with asyncio.timeout(STORED_BY):
        while not hung.settled:
            for inbox, reply in b.direct.asked:
                if inbox != NEXT:
                    b.direct.say(reply, b"")
            await asyncio.sleep(0.001)
    assert {inbox for inbox, _ in b.direct.asked} == {NEXT, "_INBOX.third"}
    assert len(b.publisher.stored) == 1
    for _, _, reply in b.direct.sent:
        b.direct.say(reply, DONE)
    assert await ended(*copies) == ["ack"] * 9


async def test_of_long_runs_all_nodes_that_do_not_answer_are_given_nothing_for_a_while(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    runs_take(b, 0.1)
    copies = [b.send()]
    await asyncio.sleep(0.010)
    b.near = Nearby(inboxes={"any": "_INBOX.third"})
    copies.append(b.send())
    await stored(b, 2)
    assert await ended(*copies) == ["ack"] * 2
    assert b.server.out._handovers._pauses.keys() == {NEXT, "_INBOX.third"}
    assert b.link.expected == {}


async def test_nothing_of_a_question_is_left_where_runs_are_short_again(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    runs_take(b, 1.05 * SHORT)
    copies = [b.send() for _ in range(12)]
    await asyncio.sleep(0.005)
    runs_take(b, 0.95 * SHORT)
    copies.append(b.send())
    await stored(b, 13)
    waits = b.server.out._handovers
    assert await ended(*copies) == ["ack"] * 13
    assert b.link.expected == {}
    assert waits._asked == waits._heard == {}


async def test_a_refusal_is_a_sign_of_life_too(bench: Callable[..., Bench]) -> None:
    b = bench()
    runs_take(b, SILENT)
    b.send()
    last = b.send()
    waits = b.server.out._handovers
    await asked(b, 1)
    b.direct.say(b.direct.sent[0][2], REFUSED)
    assert waits._asked == {}
    assert len(b.publisher.stored) == 1
    b.direct.say(b.direct.sent[1][2], DONE)
    assert await ended(last) == ["ack"]
    assert b.link.expected == {}


async def test_the_longest_run_behind_counts_where_this_stage_is_short(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    b.server.out._longest = 0.2
    most = int(LONGEST / 2 / 0.2)
    copies = [b.send() for _ in range(most + 2)]
    assert len(b.direct.sent) == most, "the lane does the others as well"
    assert await ended(*copies[most:]) == ["ack"] * 2


async def test_a_node_that_goes_on_refusing_is_asked_less_and_less_until_it_takes_something(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    waits = b.server.out._handovers

    def refuse() -> float:
        asked = len(b.direct.sent)
        b.send()
        assert len(b.direct.sent) == asked + 1
        b.direct.say(b.direct.sent[-1][2], REFUSED)
        until, seconds = waits._pauses[NEXT]
        assert 0 < until - time.monotonic() <= seconds
        waits._pauses[NEXT] = (time.monotonic() - 1e-6, seconds)  # it is over
        return seconds

    assert [refuse() for _ in range(8)] == [min(REFUSED_MOST, REFUSED_FOR * 2**n) for n in range(8)]
    b.send()
    b.direct.say(b.direct.sent[-1][2], DONE)
    assert refuse() == REFUSED_FOR
    assert refuse() == 2 * REFUSED_FOR
    waits._pauses[NEXT] = (time.monotonic() - REFUSED_MOST, REFUSED_MOST)
    assert refuse() == REFUSED_FOR, "after so long it is asked as at first"


async def test_what_one_burst_is_refused_of_is_one_refusal(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.send()
    b.send()
    for _, _, reply in list(b.direct.sent):
        b.direct.say(reply, REFUSED)
    assert b.server.out._handovers._pauses[NEXT][1] == REFUSED_FOR


async def test_a_next_stage_that_takes_long_is_soon_given_all_by_its_lane(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    for number in range(LATE + 2):
        b.send()
        await stored(b, number + 1)
    assert len(b.direct.sent) == LATE


async def test_how_long_is_waited_follows_the_time_that_the_rest_takes(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    waits = b.server.out._handovers
    assert waits.patience == MOST, "before anything is known"
    for _ in range(60):
        b.send()
        b.direct.say(b.direct.sent[-1][2], DONE)
    usual = waits.patience
    assert LEAST < usual < (LEAST + MOST) / 2
    for number in range(LATE):
        assert waits.patience == usual
        b.send()
        await stored(b, number + 1)
    assert usual < waits.patience <= MOST, "it may take longer now"


async def test_a_word_that_came_while_this_process_stood_still_counts(
    bench: Callable[..., Bench],
) -> None:
    """Timers are called before sockets are read."""
    b = bench()
    copy = b.send()
    waits = b.server.out._handovers
    waits._planned -= 1.0  # the loop was blocked for a second
    waits._look()
    assert b.publisher.tries == 0
    b.direct.say(b.direct.sent[0][2], DONE)
    assert copy.ended == "ack"
    await asyncio.sleep(2 * MOST)
    assert b.publisher.tries == 0


async def test_a_loop_that_is_blocked_again_and_again_puts_nothing_off_for_ever(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    b.send()
    until = time.monotonic() + STORED_BY
    while not b.publisher.stored and time.monotonic() < until:
        time.sleep(0.009)  # noqa: ASYNC251
        await asyncio.sleep(0)
    assert time.monotonic() < until


async def test_memory_is_free_again_when_a_refused_message_is_not_ours_any_more(
    bench: Callable[..., Bench],
) -> None:
    b = lending(bench())
    b.send().ended = "lost"
    b.direct.say(b.direct.sent[0][2], REFUSED)
    assert b.publisher.tries == 0
    assert len(b.claims.released) == 1


async def test_a_late_message_is_stored_in_the_lane_of_the_node_that_has_it(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    lanes = iter(["here", "elsewhere"])
    b.server.out._next_lane = lambda info, stage, features: next(lanes)
    b.near = Nearby(inboxes={"here": NEXT})
    b.send()
    await stored(b)
    assert b.publisher.subjects == ["swarm.t.features.m.1.2.here"]


async def test_a_second_attempt_goes_by_the_lanes(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.send(attempt=2)
    assert (b.direct.sent, len(b.publisher.stored)) == ([], 1)


@pytest.mark.parametrize("word", [REFUSED, DONE])
async def test_a_defect_in_passing_on_gives_the_message_back_and_spares_the_others(
    bench: Callable[..., Bench], word: bytes
) -> None:
    b = bench()
    copies = [b.send(), b.send()]
    if word == DONE:
        copies[0].ack = raise_a_defect  # type: ignore[method-assign]
    else:
        b.publisher.raises = ValueError("a defect")
    b.direct.say(b.direct.sent[0][2], word)
    assert copies[0].ended == "nak"
    assert b.link.callback_errors == 1
    b.publisher.raises = None
    b.direct.say(b.direct.sent[1][2], word)
    assert await ended(copies[1]) == ["ack"]
    assert b.link.callback_errors == 1


def raise_a_defect() -> bool:
    raise ValueError("a defect")


async def test_memory_that_was_lent_comes_back_with_the_word(bench: Callable[..., Bench]) -> None:
    b = lending(bench())
    b.send()
    assert b.claims.released == []
    b.direct.say(b.direct.sent[0][2], DONE)
    assert len(b.claims.released) == 1


async def test_memory_of_what_was_stored_since_is_not_freed_by_a_late_word(
    bench: Callable[..., Bench],
) -> None:
    """Somebody else may have got the lane's copy, and be reading it."""
    b = lending(bench())
    copy = b.send()
    await stored(b)
    b.direct.say(b.direct.sent[0][2], DONE)
    assert await ended(copy) == ["ack"]
    assert b.claims.released == []


async def test_what_was_copied_into_shared_memory_is_let_go_while_the_word_is_awaited(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    b = bench()
    b.near = Nearby(shared=True, inboxes={"any": NEXT})
    claim = Claim("0123456789abcdef", "swarm-m-1-0123456789abcdef", 4096, 16, 2, 9, 3)
    arrays: list[weakref.ref[np.ndarray]] = []

    def lend(tensors: dict[str, np.ndarray]) -> Lent:
        [(name, array)] = tensors.items()
        arrays.append(weakref.ref(array))
        said = Claimed(array.dtype, array.shape, array.nbytes, claim)
        return Lent({name: said}, None, {name: claim}, "_INBOX.node.claims.x")

    monkeypatch.setattr(b.claims, "lend", lend)
    b.send()
    [array] = arrays
    assert array() is None
    b.direct.say(b.direct.sent[0][2], REFUSED)
    [(_, features)] = b.publisher.stored
    assert (features.tensors["x"].dtype, features.tensors["x"].nbytes) == (np.float32, 16)
    assert Claim.from_wire(features.tensors["x"].claim["claim"]) == claim


async def test_what_was_lent_stays_so_while_the_lane_is_full(
    bench: Callable[..., Bench],
) -> None:
    b = lending(bench())
    b.publisher.refusals = [ResourceExhausted("full"), ResourceExhausted("full")]
    copy = b.send()
    b.direct.say(b.direct.sent[0][2], REFUSED)
    assert await ended(copy) == ["ack"]
    assert len(b.publisher.stored) == 1
    assert (b.claims.lends, b.claims.released) == (1, [])


async def test_memory_of_what_a_full_lane_does_not_take_in_time_is_free_again(
    bench: Callable[..., Bench],
) -> None:
    b = lending(bench())
    b.publisher.refusals = [ResourceExhausted("full")] * 1000
    copy = b.send(budget=0.05)
    b.direct.say(b.direct.sent[0][2], REFUSED)
    assert await ended(copy) == ["ack"]
    [answer] = b.answers().values()
    assert "stage 2 is full" in answer.message
    assert (b.claims.lends, len(b.claims.released)) == (1, 1)


async def test_memory_of_what_is_not_ours_any_more_when_the_lane_has_room_is_free_again(
    bench: Callable[..., Bench],
) -> None:
    b = lending(bench())
    b.publisher.refusals = [ResourceExhausted("full")]
    copy = b.send()
    b.direct.say(b.direct.sent[0][2], REFUSED)
    copy.ended = "lost"
    async with asyncio.timeout(STORED_BY):
        while not b.claims.released:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert b.publisher.tries == 1


async def test_a_stage_that_ends_stores_what_it_has_handed_over(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    copies = [b.send() for _ in range(3)]
    b.server.out.close()
    assert len(b.publisher.stored) == 3
    assert await ended(*copies) == ["ack"] * 3


async def test_a_full_lane_is_tried_again_with_what_was_handed_over_in_vain(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    b.publisher.refusals = [ResourceExhausted("full")]
    copy = b.send()
    b.direct.say(b.direct.sent[0][2], REFUSED)
    assert await ended(copy) == ["ack"]
    assert len(b.publisher.stored) == 1
    assert b.server.stats.counters.blocked == 1


async def test_fast_mode_hands_nothing_over(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.send(fresh=True)
    assert [subject for subject, _ in b.link.sent] == ["swarm.t.fresh.m.1.2"]
    assert b.server.stats.counters.handed_over == 0


# --- who takes it -----------------------------------------------------------------------


async def test_the_last_stage_answers_first_and_then_says_that_it_is_done(
    bench: Callable[..., Bench],
) -> None:
    b = bench(stage=2)
    handed(b, b.message(3.0, host="h"))
    assert b.direct.told[0][0] == "_INBOX.r1"
    assert b.direct.told[1:] == [(BEFORE, DONE)]
    assert b.server.queued == 0


async def test_the_word_waits_for_the_answer_of_a_burst(bench: Callable[..., Bench]) -> None:
    b = bench(stage=2)
    b.link.bursting = True
    handed(b, b.message(host="h"))
    assert [reply for reply, _ in b.direct.told] == ["_INBOX.r1"], "no word yet"
    b.direct.flush()
    assert b.direct.told[1:] == [(BEFORE, DONE)]


async def test_an_answer_of_a_burst_that_finds_no_room_goes_by_the_server_and_so_does_the_word(
    bench: Callable[..., Bench],
) -> None:
    b = bench(stage=2)
    b.link.bursting = b.direct.full = True
    handed(b, b.message(host="h"))
    assert (b.direct.told, b.link.sent) == ([], [])
    b.direct.full = False
    b.direct.flush()
    assert [subject for subject, _ in b.link.sent] == ["_INBOX.r1", BEFORE]
    assert b.direct.told == []


@pytest.mark.parametrize("fails", [False, True])
async def test_an_answer_that_goes_by_the_server_is_there_before_the_word(
    bench: Callable[..., Bench], fails: bool
) -> None:
    """If this node's connection is dead, both are lost, and the stage before stores the message."""
    b = bench(stage=2)
    handed(b, b.message(POISON if fails else 3.0))
    assert b.direct.told == []
    assert [subject for subject, _ in b.link.sent] == ["_INBOX.r1", BEFORE]
    assert b.link.sent[1][1] == DONE
    assert b.answers()["r1"].status is (Status.INTERNAL if fails else Status.OK)


async def test_a_failure_that_could_not_be_reported_leaves_the_message_to_its_lane(
    bench: Callable[..., Bench],
) -> None:
    b = bench(stage=2)
    b.link.error = NotConnected("lost")
    handed(b, b.message(POISON))
    assert b.direct.told == [(BEFORE, REFUSED)]


async def test_a_stage_in_the_middle_is_done_when_the_next_one_is(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    handed(b, b.message())
    assert (b.direct.told, b.server.queued) == ([], 1)
    assert b.direct.lived == []
    b.direct.say(b.direct.sent[0][2], DONE)
    assert (b.direct.told, b.server.queued) == ([(BEFORE, DONE)], 0)
    assert b.direct.lived == [b.direct.sent[0][0]], "gossip need not ask whether it does"


async def test_a_stage_in_the_middle_is_done_when_the_next_lane_has_it(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    handed(b, b.message())
    b.publisher.hold = True
    b.direct.say(b.direct.sent[0][2], REFUSED)
    assert b.direct.told == []
    b.publisher.release(None)
    assert b.direct.told == [(BEFORE, PASSED_ON)]


async def test_a_copy_that_was_stored_meanwhile_is_settled_and_not_computed(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    handed(b, b.message(budget=10.0))
    copy = b.deliver(later(b, budget=9.99))
    assert not copy.settled
    assert b.server.queued == 1
    b.direct.say(b.direct.sent[0][2], DONE)
    assert copy.ended == "ack"
    assert b.direct.told == [], "its sender has the lane's word"
    assert b.model.batches == [1]


async def test_a_copy_that_was_stored_since_the_word_was_lost_is_not_computed(
    bench: Callable[..., Bench],
) -> None:
    b = bench(stage=2)
    handed(b, b.message(budget=10.0))
    assert await ended(b.deliver(later(b, budget=9.99))) == ["ack"]
    assert b.model.batches == [1]


@pytest.mark.parametrize(
    "why", ["stale", "waiting", "held", "stopping", "no connection", "another stage", "garbage"]
)
async def test_what_is_not_taken_is_refused_with_a_word(
    bench: Callable[..., Bench], why: str
) -> None:
    b = bench(stage=2)
    if why == "waiting":
        b.lane.pending = 1  # what lies in the lane came first, and takes long
        b.server.stats.compute.add(5.0, time.monotonic())
    elif why == "stopping":
        await b.server.drain()
    elif why == "held":
        b.lane.kept = dict.fromkeys(range(HANDED))  # type: ignore[arg-type]
    b.link.connected = why != "no connection"
    data = b.message(stage=1 if why == "another stage" else 2)
    handed(b, b"\x80" if why == "garbage" else data, 2 * STALE if why == "stale" else 0)
    assert b.direct.told == [(BEFORE, REFUSED)]
    assert b.model.batches == []


async def test_what_waits_in_the_lane_is_asked_for_before_more_is_taken(
    bench: Callable[..., Bench],
) -> None:
    b = bench(stage=2)
    runs_take(b, 0.025)
    b.lane.pending = 8
    handed(b, b.message(stage=2))
    assert b.lane.asked_for_all == 8
    assert b.model.batches == [1]
    b.lane.pending = int(AT_HAND / 0.025) + 1
    handed(b, b.message(stage=2))
    assert b.lane.asked_for_all == 8, "others may have room for it"
    assert b.direct.told[-1] == (BEFORE, REFUSED)
    runs_take(b, 0.0001)
    b.lane.pending = 8
    handed(b, b.message(stage=2))
    assert b.lane.asked_for_all == 8, "so little is not worth it"
    assert b.model.batches == [1, 1]


async def test_of_routed_messages_what_waits_in_the_shared_lane_is_for_whoever_is_free(
    bench: Callable[..., Bench],
) -> None:
    b = bench(stage=2)
    runs_take(b, 0.025)
    own = FakeLane()
    b.server.lanes.append(own)  # type: ignore[arg-type]
    own.pending = 2
    handed(b, b.message(stage=2))
    assert own.asked_for_all == 2
    assert b.model.batches == [1]
    b.lane.pending = own.pending = 2
    handed(b, b.message(stage=2))
    assert (b.lane.asked_for_all, own.asked_for_all) == (0, 2)
    assert b.direct.told[-1] == (BEFORE, REFUSED)


async def test_the_same_message_from_two_nodes_is_taken_once(bench: Callable[..., Bench]) -> None:
    b = bench()
    data = handed(b, b.message())
    handed(b, data)
    assert b.direct.told == [(BEFORE, REFUSED)], "the second one stores it: a copy"
    assert b.model.batches == [1]


async def test_a_suspended_stage_gives_back_what_was_handed_to_it(
    bench: Callable[..., Bench],
) -> None:
    b = bench(FakeModel(slow=0.1), stage=2)
    data = handed(b, b.message())
    b.server.suspend()
    assert b.direct.told == [(BEFORE, REFUSED)]
    assert b.server.queued == 0
    b.server.resume()
    assert await ended(b.deliver(data)) == ["ack"], "by its lane then"


async def test_what_cannot_be_stored_without_a_connection_goes_back(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    handed(b, b.message())
    b.publisher.raises = NotConnected("lost")
    b.direct.say(b.direct.sent[0][2], REFUSED)
    assert b.direct.told == [(BEFORE, REFUSED)]


async def test_a_connection_that_ends_before_the_store_is_known_gives_it_back(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    b.publisher.hold = True
    handed(b, b.message())
    b.direct.say(b.direct.sent[0][2], REFUSED)
    b.publisher.release(NotConnected("lost"))
    assert b.direct.told == [(BEFORE, REFUSED)]
    assert b.server.queued == 0


async def test_a_failure_ends_what_was_handed_over(bench: Callable[..., Bench]) -> None:
    b = bench(stage=2)
    handed(b, b.message(budget=0.001), ago_ns=5_000_000)
    assert b.answers()["r1"].status is Status.DEADLINE_EXCEEDED
    assert b.link.sent[-1] == (BEFORE, DONE)


async def test_what_was_cancelled_is_done(bench: Callable[..., Bench]) -> None:
    b = bench(stage=2)
    b.server.cancel("r1")
    handed(b, b.message())
    assert b.direct.told == [(BEFORE, DONE)]
    assert b.model.batches == []


async def test_what_is_done_makes_room_for_more(bench: Callable[..., Bench]) -> None:
    b = bench(stage=2)
    for _ in range(3 * KEPT):
        handed(b, b.message(host="h"))
    assert [word for reply, word in b.direct.told if reply == BEFORE] == [DONE] * 3 * KEPT
    assert len(b.server.intake._early) <= KEPT
