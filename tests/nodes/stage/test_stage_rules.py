"""The tables of a stage and of a parcel: each row is reached, and each parcel ends once."""

from __future__ import annotations

from itertools import product

from nodes.stage.rules import BEFORE_RUN, SENT, Onward, Ready
from swarm.errors import InvalidArgument, NoResponders, NotConnected, ResourceExhausted, Unavailable
from swarm.transport.api import Acked, Event, InFlight, Published, Refused, Stored
from swarm.transport.handover.states import TABLE, Effect, News, ParcelState

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
