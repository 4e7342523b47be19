"""A session's answers never go back in weight versions."""

from __future__ import annotations

import pytest
from fake_stage import outcome
from hypothesis import given
from hypothesis import strategies as st
from simulated_desk import Message, SimulatedDesk, SimulatedStage

from swarm.errors import Status
from swarm.requests.sessions import DOUBTED_FOR, FAILURES, MOST_DOUBTED, SeenWeights
from swarm.wire.hops import Hop
from swarm.wire.messages import Features

ONE, OTHER = ("m", "1", "", "one"), ("m", "1", "", "other")


def test_a_session_asks_for_the_highest_version_that_it_saw() -> None:
    seen = SeenWeights()
    assert seen.least(ONE) == 0
    for weights in (3, 5, 4, 0):
        seen.saw(ONE, weights)
    assert (seen.least(ONE), seen.least(OTHER)) == (5, 0)
    assert seen.least(("m", "2", "", "one")) == 0, "another version of the model begins anew"


def test_sessions_of_the_base_alone_take_no_memory() -> None:
    seen = SeenWeights()
    seen.saw(ONE, 0)
    assert len(seen) == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 50)), max_size=60))
def test_memory_is_bounded_and_keeps_the_sessions_that_were_used_last(
    answers: list[tuple[int, int]],
) -> None:
    seen = SeenWeights(most=3)
    for session, weights in answers:
        seen.saw(("m", "1", "", str(session)), weights)
        assert len(seen) <= 3
        assert seen.least(("m", "1", "", str(session))) >= weights


@pytest.mark.simulated
async def test_the_next_request_of_a_session_asks_for_what_the_last_answer_named(
    desk: SimulatedDesk,
) -> None:
    serves = 4

    def behave(stage: SimulatedStage, message: Message, features: Features) -> None:
        result = outcome(features)
        result.hops = (result.hops[0]._replace(weights=serves),)
        stage.reply(features, result)
        message.done()

    desk.stage.behave = behave
    result = await desk.infer(10.0, session="one")
    assert (result.weights, result.hops[0].weights) == (4, 4)
    await desk.infer(10.0, session="one")
    await desk.infer(10.0, session="two")
    await desk.infer(10.0)
    serves = 2  # a node that is behind; a stage would not answer so
    await desk.infer(10.0, session="one")
    await desk.infer(10.0, session="one", weights=9)
    asked = [(features.session, features.weights) for features in desk.stage.seen]
    assert asked == [("one", 0), ("one", 4), ("two", 0), ("", 0), ("one", 4), ("one", 9)]


@pytest.mark.simulated
async def test_requests_for_weights_that_nobody_has_open_no_breaker(desk: SimulatedDesk) -> None:
    """Else one client's wish would refuse the requests of all clients of a gateway."""

    def behave(stage: SimulatedStage, message: Message, features: Features) -> None:
        if features.weights > 4:
            features.hops.append(Hop(1, "fake", 0, 0, 0, weights=4).as_doc())
            stage.fail(features, Status.UNAVAILABLE, "computes with weight version 4 here")
        else:
            stage.reply(features, outcome(features))
        message.done()

    desk.stage.behave = behave
    for _ in range(8):
        result = await desk.infer(0.05, weights=99)
        assert result.status in (Status.UNAVAILABLE, Status.DEADLINE_EXCEEDED)
        assert "weight version 4" in result.message
    assert (await desk.infer(10.0)).status is Status.OK


# --- a version that nobody has ----------------------------------------------------------------

LIE = 1 << 50


def lie(seen: SeenWeights, session: tuple[str, str, str, str], now: float) -> None:
    seen.saw(session, LIE, now)
    assert seen.least(session, now) == LIE


def test_a_version_that_nobody_serves_is_void_after_three_requests_for_all_sessions() -> None:
    seen = SeenWeights()
    seen.saw(OTHER, 5, 0.0)
    for session in (ONE, OTHER):
        lie(seen, session, 1.0)
    for _ in range(FAILURES):
        assert seen.least(ONE, 2.0) == LIE
        seen.lacked(ONE, LIE, 2.0)
    assert (seen.least(ONE, 2.0), seen.least(OTHER, 2.0)) == (0, 0)
    seen.saw(ONE, LIE + 7, 3.0)
    assert seen.least(ONE, 3.0) == 0, "the same node says so again"
    for session in (ONE, OTHER):
        seen.saw(session, 6, 4.0)
        assert seen.least(session, 4.0) == 6, "what others serve counts"


def test_the_doubt_ends() -> None:
    seen = SeenWeights()
    lie(seen, ONE, 0.0)
    for _ in range(FAILURES):
        seen.lacked(ONE, LIE, 1.0)
    seen.saw(OTHER, LIE, 0.9 + DOUBTED_FOR)
    assert seen.least(OTHER, 0.9 + DOUBTED_FOR) == 0
    lie(seen, OTHER, 1.1 + DOUBTED_FOR)


def test_an_answer_between_two_failures_keeps_the_version() -> None:
    seen = SeenWeights()
    seen.saw(ONE, 5, 0.0)
    for _ in range(5):
        for _ in range(FAILURES - 1):
            seen.lacked(ONE, 5, 1.0)
        seen.saw(ONE, 5, 1.0)
    assert seen.least(ONE, 2.0) == 5


def test_a_client_that_asks_for_more_than_there_is_voids_nothing() -> None:
    seen = SeenWeights()
    seen.saw(ONE, 5, 0.0)
    for _ in range(9):
        seen.lacked(ONE, 99, 1.0)
    assert seen.least(ONE, 2.0) == 5


def test_doubted_versions_take_bounded_memory() -> None:
    seen = SeenWeights()
    for number in range(2 * MOST_DOUBTED):
        session = (f"m{number}", "1", "", "one")
        lie(seen, session, 0.0)
        for _ in range(FAILURES):
            seen.lacked(session, LIE, 0.0)
    told = [("m" + str(n), "1", "", "two") for n in range(2 * MOST_DOUBTED)]
    for session in told:
        seen.saw(session, LIE, 1.0)
    assert sum(seen.least(session, 1.0) == 0 for session in told) == MOST_DOUBTED


@pytest.mark.simulated
async def test_a_node_that_lies_of_its_weights_spoils_three_requests_of_a_session(
    desk: SimulatedDesk,
) -> None:
    lies = True

    def behave(stage: SimulatedStage, message: Message, features: Features) -> None:
        if lies:
            result = outcome(features)
            result.hops = (result.hops[0]._replace(weights=LIE),)
            stage.reply(features, result)
        elif features.weights > 4:
            features.hops.append(Hop(1, "fake", 0, 0, 0, weights=4).as_doc())
            stage.fail(features, Status.UNAVAILABLE, "computes with weight version 4 here")
        else:
            stage.reply(features, outcome(features))
        message.done()

    desk.stage.behave = behave
    assert (await desk.infer(10.0, session="one")).weights == LIE
    lies = False
    statuses = [(await desk.infer(0.05, session="one")).status for _ in range(FAILURES)]
    assert Status.OK not in statuses
    assert (await desk.infer(10.0, session="one")).status is Status.OK
    assert (await desk.infer(10.0, session="two")).status is Status.OK
