"""The tables of a stage and of a parcel: each row is reached, and each parcel ends once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import product

import pytest
from stage_bench import Bench
from support.waiting import eventually

from nodes.stage.rules import BEFORE_RUN, SENT, After, Onward, Ready
from swarm.errors import InvalidArgument, NoResponders, NotConnected, ResourceExhausted, Unavailable
from swarm.flow.rules import decide
from swarm.transport.api import (
    Acked,
    Event,
    InFlight,
    OnEvent,
    Published,
    Refused,
    Sending,
    Stored,
)
from swarm.transport.handover.states import TABLE, Effect, News, ParcelState
from swarm.transport.parcel import Parcel
from swarm.transport.stage_sender import IN_LANE, StageSender

MakeBench = Callable[..., Awaitable[Bench]]

ERRORS = (InvalidArgument, NoResponders, NotConnected, ResourceExhausted, Unavailable)
EVENTS: tuple[Event, ...] = (
    *(InFlight(), Acked(True), Stored(), Published()),
    *(Refused(error("")) for error in ERRORS),
)


def test_each_row_decides_for_some_message() -> None:
    booleans, seconds = (False, True), (0.0, 5.0)
    sent = [Onward(*facts) for facts in product(EVENTS, booleans, booleans, seconds)]
    ready = [Ready(*facts) for facts in product(seconds, (1.0,), (0.0, 9.0), booleans, seconds)]
    assert {next(n for n, rule in enumerate(SENT) if rule.holds(each)) for each in sent} == set(
        range(len(SENT))
    )
    reached = {next(n for n, rule in enumerate(BEFORE_RUN) if rule.holds(each)) for each in ready}
    assert reached == set(range(len(BEFORE_RUN)))


@pytest.mark.parametrize("event", EVENTS, ids=repr)
@pytest.mark.parametrize("budget", [0.08, 10.0])
@pytest.mark.parametrize("over", [False, True], ids=["in hand", "over"])
async def test_a_stage_does_with_its_message_what_the_table_says(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, event: Event, budget: float, over: bool
) -> None:
    """Where all goes well the stage does not ask the table, which would cost time."""
    told: list[OnEvent] = []

    def send(_: StageSender, parcel: Parcel, on: OnEvent) -> Sending:
        told.append(on)
        return IN_LANE

    monkeypatch.setattr(StageSender, "send", send)
    b = await bench(stage=1)
    sent = b.send(budget=budget)
    await eventually(lambda: told)
    if over:
        told[0](Acked(True))
    told[0](event)
    does = decide(SENT, Onward(event, over, False, budget)).do
    ends = {After.ACK: "ack", After.ANSWER: "ack", After.HAND_BACK: "nak"}
    assert sent.ended == ("ack" if over else ends.get(does, ""))
    assert bool(b.answers()) is (does is After.ANSWER)


def test_a_parcel_ends_and_its_sender_is_told_of_the_end_once() -> None:
    ends = (ParcelState.ENDED, ParcelState.ENDED_STORING)

    def walk(state: ParcelState, seen: frozenset[tuple[ParcelState, News]]) -> None:
        following = [(key, then) for key, then in TABLE.items() if key[0] is state]
        assert following or state is ParcelState.ENDED
        for key, then in following:
            told = Effect.TELL in then.effects
            assert not (told and state in ends), "it is told of nothing behind the end"
            if then.state in ends and state not in ends:
                assert told or key[1] in (News.LET_GO, News.UNWANTED)
            if key not in seen:
                walk(then.state, seen | {key})

    walk(ParcelState.IN_FLIGHT, frozenset())
