"""A requester keeps what a node of its host has, until it is answered; and stores it if need be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from fake_stage import INFO, SUBJECTS
from nowhere import Wire

from swarm.errors import NotConnected, ResourceExhausted, Status, SwarmError, Unavailable
from swarm.fleet.placement import Nearby
from swarm.flow.hedge import Hedger
from swarm.lanes import DONE, PASSED_ON, REFUSED
from swarm.link import LinkMessage
from swarm.local.compact import decode_features
from swarm.local.host_socket import LARGEST, LIVING
from swarm.requests.outgoing import FEW, LONE
from swarm.requests.request import CORE, Ask
from swarm.requests.requester import Requester
from swarm.transport.handover import LEAST, REFUSED_FOR
from swarm.wire.hops import Hop
from swarm.wire.messages import Features, Result
from swarm.wire.tensors import Part

FIRST = "_INBOX.first"
LONG = 5.0  # seconds; a machine may stand still for a while


class Host:
    """The sockets of this host, in place of `Direct`."""

    def __init__(self) -> None:
        self.sent: list[tuple[Features, str]] = []  # with its reply subject
        self.full = False
        self.lived: list[str] = []
        self.asked: list[str] = []  # whether it lives: reply subjects
        self.on_gone: list[Callable[[str], None]] = []

    def heard(self, inbox: str, at: float) -> None:
        self.lived.append(inbox)

    def send(self, inbox: str, subject: str, parts: Sequence[Part], reply: str = "") -> bool:
        if self.full or sum(map(len, parts)) > LARGEST:
            return False
        if subject == LIVING:
            self.asked.append(reply)
        else:
            self.sent.append((decode_features(b"".join(parts)), reply))
        return True

    def post(self, inbox: str, subject: str, parts: Any, then: Any, reply: str = "") -> None:
        then(self.send(inbox, subject, parts, reply))


class Lanes:
    """In place of `Publisher`: keeps what is stored, or refuses it."""

    def __init__(self) -> None:
        self.stored: list[Features] = []
        self.error: SwarmError | None = None
        self.raises: SwarmError | None = None

    def publish(self, subject: str, parts: Any, message_id: str, on_stored: Any) -> None:
        if self.raises is not None:
            raise self.raises
        features = Features.decode(b"".join(parts))
        assert (message_id, subject) == (features.message_id, "swarm.test.features.m.1.1.any")
        self.stored.append(features)
        on_stored(self.error, len(self.stored))


class Shop:
    def __init__(self) -> None:
        self.wire, self.host, self.lanes = Wire(), Host(), Lanes()
        self.wire.connected = True
        claims: Any = type(
            "", (), {"host": "here", "wants": lambda *_: False, "take": lambda *_: 0}
        )
        claims.collect = lambda *_: None
        self.requester = Requester(
            self.wire,
            SUBJECTS,
            self.lanes,  # type: ignore[arg-type]
            claims,
            lambda *_: Nearby(inboxes={"any": FIRST}),
            self.host,  # type: ignore[arg-type]
        )
        self.tasks: list[asyncio.Task[Result]] = []

    async def ask(self, budget: float = LONG, **options: Any) -> asyncio.Task[Result]:
        """Ask, and let it be sent."""
        inputs = {"x": np.ones((1, 4), np.float32)}
        ask = Ask(INFO, inputs, asyncio.get_running_loop().time() + budget, **options)
        self.tasks.append(asyncio.create_task(self.requester.infer(ask)))
        await asyncio.sleep(0)
        return self.tasks[-1]

    def say(self, word: bytes, number: int = -1) -> None:
        """What the first stage says of a message that it was handed."""
        features, reply = self.host.sent[number]
        assert reply == features.reply, "the answer is the word"
        self.wire.deliver(LinkMessage(reply, "", None, word))

    def answer(self, number: int = -1, status: Status = Status.OK, us: int = 2) -> None:
        self.answered(self.host.sent[number][0], status, us)

    def answered(self, features: Features, status: Status = Status.OK, us: int = 2) -> None:
        hops = (Hop(1, "n", 1, us, 1),)
        result = Result(
            features.id, "m", "1", status, outputs={}, attempt=features.attempt, hops=hops
        )
        self.wire.deliver(LinkMessage(features.reply, "", None, b"".join(result.parts())))

    async def stored(self, count: int = 1) -> list[Features]:
        async with asyncio.timeout(LONG):
            while len(self.lanes.stored) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return self.lanes.stored

    @property
    def held(self) -> int:
        legs = self.requester._outgoing._legs.values()
        return sum(len(leg._held) for leg in legs) + len(self.requester._asks)


@pytest.fixture
def shop() -> Iterator[Callable[[], Shop]]:
    made: list[Shop] = []

    def make() -> Shop:
        made.append(Shop())
        return made[-1]

    yield make
    for each in made:
        assert all(task.done() for task in each.tasks)
        assert each.held == 0, "nothing of a request is left"
        assert not each.wire._replies


async def test_what_is_answered_was_never_stored_and_nothing_is_cancelled(
    shop: Callable[[], Shop],
) -> None:
    s = shop()
    asked = await s.ask()
    s.answer()
    assert (await asked).status is Status.OK
    assert (s.lanes.stored, s.wire.subjects) == ([], [])


async def test_what_is_refused_is_stored_at_once_as_the_same_message_with_the_budget_that_is_left(
    shop: Callable[[], Shop],
) -> None:
    s = shop()
    asked = await s.ask()
    await asyncio.sleep(0.002)
    s.say(REFUSED)
    [copy], [(first, _)] = s.lanes.stored, s.host.sent
    assert (copy.message_id, copy.reply) == (first.message_id, first.reply)
    assert first.budget_us - 2_000_000 < copy.budget_us < first.budget_us - 1_000
    s.say(REFUSED)
    s.say(DONE)
    assert len(s.lanes.stored) == 1, "the first word counts"
    s.answer()
    assert (await asked).status is Status.OK
    assert s.wire.subjects == [], "one copy, one answer: nothing to cancel"


async def test_what_is_not_answered_in_good_time_is_stored(shop: Callable[[], Shop]) -> None:
    s = shop()
    start = time.monotonic()
    asked = await s.ask()
    await s.stored()
    assert time.monotonic() - start > 0.010, "not before"
    assert not asked.done()
    s.answer()
    assert (await asked).status is Status.OK
    assert s.requester.retries == 0
    assert s.wire.subjects == ["swarm.test.cancel.m.1"], "who hung need not compute it any more"


@pytest.mark.parametrize("raises", [False, True])
async def test_what_is_late_and_cannot_be_stored_may_still_be_answered(
    shop: Callable[[], Shop], raises: bool
) -> None:
    s = shop()
    if raises:
        s.lanes.raises = NotConnected("lost")
    else:
        s.lanes.error = ResourceExhausted("full")
    asked = await s.ask()
    await asyncio.sleep(0.05)
    assert len(s.lanes.stored) == (not raises)
    assert not asked.done()
    s.answer()
    assert (await asked).status is Status.OK


async def test_an_answer_that_comes_while_there_is_no_connection_counts(
    shop: Callable[[], Shop],
) -> None:
    s = shop()
    s.lanes.raises = NotConnected("lost")
    asked = await s.ask()
    s.say(REFUSED)  # and had it in hand, all the same
    await asyncio.sleep(0.02)
    assert not asked.done(), "it waits for a connection"
    s.answer()
    assert (await asyncio.wait_for(asked, 1.0)).status is Status.OK


async def test_the_end_of_the_wait_for_a_connection_is_no_silence_of_the_next_attempt(
    shop: Callable[[], Shop],
) -> None:
    s = shop()
    s.lanes.raises = NotConnected("lost")
    asked = await s.ask()
    s.say(REFUSED)
    await asyncio.sleep(0.02)
    s.lanes.raises = None
    s.requester._reconnected()
    s.wire._up.set()
    await s.stored()
    await asyncio.sleep(0.02)
    assert [features.attempt for features in s.lanes.stored] == [2]
    s.answer()
    assert (await asked).status is Status.OK


async def test_what_lanes_have_is_before_what_is_handed_over_and_waited_for_too(
    shop: Callable[[], Shop],
) -> None:
    s = shop()
    s.host.full = True
    asked = [await s.ask(id=f"r{number}") for number in range(5)]
    s.host.full = False
    [leg] = s.requester._outgoing._legs.values()
    leg.longest = 0.020
    leg._pauses.clear()
    asked += [await s.ask(id=f"s{number}") for number in range(2)]
    stages = INFO.last
    waited = [(h.until - h.since - LEAST) / 0.020 for h in leg._held.values()]
    assert waited == pytest.approx([2 * (5 + stages), 2 * (5 + 1 + stages)])
    for features in [*s.lanes.stored, *(features for features, _ in s.host.sent)]:
        s.answered(features)
    assert {(await task).status for task in asked} == {Status.OK}


async def test_an_answer_is_no_sign_of_life_of_the_first_stage(shop: Callable[[], Shop]) -> None:
    s = shop()
    asked = await s.ask()
    s.answer()
    await asked
    assert s.host.lived == []


async def test_of_long_runs_a_first_stage_that_says_nothing_is_asked_whether_it_lives(
    shop: Callable[[], Shop],
) -> None:
    s = shop()
    asked = await s.ask()
    [leg] = s.requester._outgoing._legs.values()
    s.answer()
    await asked
    leg.longest = 0.02
    asked = await s.ask()
    await s.stored()
    [reply] = s.host.asked
    s.answer()
    assert (await asked).status is Status.OK
    assert reply not in s.wire._replies


async def test_a_failure_pauses_nothing(shop: Callable[[], Shop]) -> None:
    """The first attempt is over: it is not late when the second is."""
    s = shop()
    asked = await s.ask()
    [leg] = s.requester._outgoing._legs.values()
    s.answer(status=Status.UNAVAILABLE)
    await s.stored()
    await asyncio.sleep(0.05)
    assert leg._pauses == {}
    s.answer()
    assert (await asked).status is Status.OK


async def test_what_a_later_lane_has_is_not_stored(shop: Callable[[], Shop]) -> None:
    s = shop()
    asked = await s.ask()
    s.say(PASSED_ON)
    await asyncio.sleep(0.05)
    assert s.lanes.stored == []
    assert s.host.lived == [FIRST]
    s.answer()
    assert (await asked).status is Status.OK


async def test_what_a_process_had_that_has_ended_is_stored_at_once(
    shop: Callable[[], Shop],
) -> None:
    s = shop()
    asked = [await s.ask() for _ in range(3)]
    for gone in s.host.on_gone:
        gone("_INBOX.another")
    assert s.lanes.stored == []
    for gone in s.host.on_gone:
        gone(FIRST)
    assert len(s.lanes.stored) == 3
    for number in range(3):
        s.answer(number)
    assert [(await each).status for each in asked] == [Status.OK] * 3


async def test_who_refused_is_left_alone_for_a_while_and_then_asked_again(
    shop: Callable[[], Shop],
) -> None:
    s = shop()
    for handed, stored in ((1, 1), (1, 2), (2, 2)):
        if stored == 2:  # at whatever pace this runs: the pause is not over, or is
            [leg] = s.requester._outgoing._legs.values()
            _, seconds = leg._pauses[FIRST]
            assert seconds == REFUSED_FOR
            leg._pauses[FIRST] = (time.monotonic() + (60.0 if handed == 1 else 0.0), seconds)
        asked = await s.ask()
        if len(s.lanes.stored) == 0:
            s.say(REFUSED)
        assert (len(s.host.sent), len(s.lanes.stored)) == (handed, stored)
        s.answered(s.host.sent[-1][0] if handed == 2 else s.lanes.stored[-1])
        assert (await asked).status is Status.OK


async def test_a_socket_without_room_costs_no_wait(shop: Callable[[], Shop]) -> None:
    s = shop()
    s.host.full = True
    asked = await s.ask()
    assert len(s.lanes.stored) == 1
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_what_is_given_up_is_cancelled_and_not_stored_later(
    shop: Callable[[], Shop],
) -> None:
    s = shop()
    asked = await s.ask()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert s.wire.subjects == ["swarm.test.cancel.m.1"]
    s.say(REFUSED)
    await asyncio.sleep(0.05)
    assert s.lanes.stored == []


async def test_a_full_lane_behind_a_refusal_is_a_fast_refusal(shop: Callable[[], Shop]) -> None:
    s = shop()
    s.lanes.error = ResourceExhausted("full")
    asked = await s.ask()
    s.say(REFUSED)
    assert (await asked).status is Status.RESOURCE_EXHAUSTED


async def test_what_cannot_be_stored_is_asked_again(shop: Callable[[], Shop]) -> None:
    s = shop()
    s.lanes.raises = Unavailable("no")
    asked = await s.ask()
    s.say(REFUSED)
    s.lanes.raises = None
    [again] = await s.stored()
    assert again.attempt == 2
    s.answer(0)
    assert (await asked).status is Status.OK


async def test_a_defect_in_storing_asks_again(shop: Callable[[], Shop]) -> None:
    s = shop()
    s.lanes.raises = ValueError("a defect")  # type: ignore[assignment]
    asked = await s.ask()
    s.say(REFUSED)
    s.lanes.raises = None
    [again] = await s.stored()
    assert (again.attempt, s.wire.callback_errors) == (2, 1)
    s.answer(0)
    assert (await asked).status is Status.OK


async def test_a_first_attempt_is_not_stored_behind_the_second(shop: Callable[[], Shop]) -> None:
    """After a reconnect, say."""
    s = shop()
    asked = await s.ask()
    s.requester._reconnected()
    [again] = await s.stored()
    assert again.attempt == 2
    s.say(REFUSED)
    await asyncio.sleep(0.05)
    assert len(s.lanes.stored) == 1
    s.answer()
    assert (await asked).status is Status.OK


async def test_a_failure_of_the_first_attempt_does_not_end_the_second(
    shop: Callable[[], Shop],
) -> None:
    s = shop()
    asked = await s.ask()
    s.requester._reconnected()
    await s.stored()
    s.answer(0, Status.UNAVAILABLE)
    await asyncio.sleep(0.02)
    assert ([features.attempt for features in s.lanes.stored], s.requester.retries) == ([2], 1)
    s.answered(s.lanes.stored[0])
    assert (await asked).status is Status.OK


async def test_a_second_copy_that_finds_a_full_lane_leaves_the_first_to_its_answer(
    shop: Callable[[], Shop],
) -> None:
    s = shop()
    s.lanes.error = ResourceExhausted("full")
    s.requester._hedger = Hedger(fraction=1.0)
    for _ in range(100):
        s.requester._hedger.on_request(time.monotonic())
    asked = await s.ask()
    [(reply, ask)] = s.requester._asks.items()
    s.requester._hedge(ask, reply, asyncio.get_running_loop())
    assert ([features.attempt for features in s.lanes.stored], s.requester.hedges) == ([2], 1)
    await asyncio.sleep(0.002)
    assert not asked.done()
    s.answer()
    assert (await asked).status is Status.OK


async def test_a_failure_of_what_was_handed_over_is_asked_again_by_the_lane(
    shop: Callable[[], Shop],
) -> None:
    s = shop()
    asked = await s.ask()
    s.answer(status=Status.UNAVAILABLE)
    [again] = await s.stored()
    assert (again.attempt, len(s.host.sent)) == (2, 1)
    s.answer()
    assert (await asked).status is Status.OK


async def test_more_than_a_few_go_by_the_lane(shop: Callable[[], Shop]) -> None:
    s = shop()
    asked = [await s.ask() for _ in range(FEW + 3)]
    s.wire.gather.end()
    handed = {features.id for features, _ in s.host.sent}
    stored = {features.id for features in s.lanes.stored}  # late ones too, on a slow machine
    assert len(handed | stored) == FEW + 3
    assert len(stored) >= 3
    assert len(s.host.sent) <= FEW
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_many_that_are_asked_at_once_go_together(shop: Callable[[], Shop]) -> None:
    s = shop()
    inputs = {"x": np.ones((1, 4), np.float32)}
    deadline = asyncio.get_running_loop().time() + LONG
    together: list[bool] = []
    post, send = s.host.post, s.host.send
    s.host.post = lambda *a, **k: (together.append(True), post(*a, **k))  # type: ignore[assignment, func-returns-value]
    s.host.send = lambda *a, **k: (together.append(False), send(*a, **k))[1]  # type: ignore[assignment, method-assign]
    s.tasks = [
        asyncio.create_task(s.requester.infer(Ask(INFO, inputs, deadline))) for _ in range(20)
    ]
    await asyncio.sleep(0)
    assert together.count(True) == 20 - LONE
    for number in range(20):
        s.answer(number)
    assert {result.status for result in await asyncio.gather(*s.tasks)} == {Status.OK}
    await asyncio.sleep(0)
    assert not s.wire.bursting


async def test_how_long_the_slowest_stage_takes_is_learned_from_answers(
    shop: Callable[[], Shop],
) -> None:
    s = shop()
    for _ in range(100):
        asked = await s.ask()
        s.answer(us=50_000)
        await asked
    [leg] = s.requester._outgoing._legs.values()
    assert leg.longest == pytest.approx(0.05, rel=0.01), "and not as the manifest says: 1 ms"


async def test_a_requester_that_closes_stores_nothing(shop: Callable[[], Shop]) -> None:
    s = shop()
    asked = await s.ask(budget=0.1)
    s.requester.close()
    assert (await asked).status is Status.DEADLINE_EXCEEDED
    assert all(features.attempt > 1 for features in s.lanes.stored)
    s.requester.close()
    assert s.host.on_gone == []


async def test_fast_mode_keeps_nothing(shop: Callable[[], Shop]) -> None:
    s = shop()
    asked = await s.ask(delivery=CORE)
    [(features, reply)] = s.host.sent
    assert reply == "", "nobody waits for a word"
    assert s.requester._outgoing._legs == {}
    s.wire.deliver(
        LinkMessage(
            features.reply, "", None, b"".join(Result(features.id, "m", "1", outputs={}).parts())
        )
    )
    assert (await asked).status is Status.OK


async def test_without_a_connection_nothing_is_handed_over(shop: Callable[[], Shop]) -> None:
    """Whoever has it could not pass it on."""
    s = shop()
    s.wire.connected = False
    s.lanes.raises = NotConnected("lost")
    asked = await s.ask(budget=0.02)
    assert (await asked).status is Status.DEADLINE_EXCEEDED
    assert s.host.sent == []
