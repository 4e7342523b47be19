"""Who gets a slot: an agent has its share, others find theirs, and a refusal reads no text."""

from __future__ import annotations

import contextlib
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import ResourceExhausted, Status
from swarm.language.admission import Shares, SlotAdmission
from swarm.language.choice import SlotCandidate
from swarm.language.effects import Ended
from swarm.language.head import HeadCore
from swarm.language.keys import id_of
from swarm.language.limits import LanguageLimits, Shape
from swarm.language.request import GenerateRequest

SLOTS = 8


def asked(number: int, agent: str = "flood") -> GenerateRequest:
    return GenerateRequest(session=f"{agent}{number}", text="Once", max_tokens=5, agent=agent)


def head(share: float = 0.5, limits: LanguageLimits | None = None) -> HeadCore:
    """Of a model in one stage."""
    limits = limits or LanguageLimits(shares=Shares(share))
    return HeadCore(
        1, "n", Shape(8, 64, SLOTS, 64), lambda _: [SlotCandidate("n")], "w", limits=limits
    )


def opened(core: HeadCore, number: int, agent: str, now: float, prompt: int = 20) -> bool:
    """Whether a request gets its session."""
    request = GenerateRequest(
        session=f"{agent}{number}", prompt=(1,) * prompt, max_tokens=2, agent=agent
    )
    core.ask(request, "r", now)
    for each in core.prepares():
        core.prepared(each.request, each.reply, now)
    return request.session in core.sessions


def refusals(core: HeadCore) -> list[str]:
    return [tell.session for tell in core.flush().tells if tell.error is not None]


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["ask", "end", "late"])), max_size=80
)


@given(steps=STEPS, share=st.sampled_from([0.1, 0.5, 1.0]))
def test_no_agent_has_more_than_its_share_and_none_waits_beside_a_slot_of_its_own(
    steps: list[tuple[str, str]], share: float
) -> None:
    admission = SlotAdmission(SLOTS, Shares(share, waiting=1, wait=1.0))
    held: dict[str, str] = {}
    most, now = max(1, int(share * SLOTS)), 0.0
    for number, (agent, kind) in enumerate(steps):
        now += 0.1
        if kind == "ask":
            request = asked(number, agent)
            full = admission.is_full(request)
            if full:
                with pytest.raises(ResourceExhausted):
                    admission.wait(request, "r", now)
            else:
                with contextlib.suppress(ResourceExhausted):  # others have all places
                    admission.wait(request, "r", now)
        elif kind == "late":
            assert all(each.until <= now for each in admission.late(now))
        elif own := [session for session, whose in held.items() if whose == agent]:
            del held[own[0]]
            admission.free(own[0])
        for each in admission.next(SLOTS - admission.held):
            held[each.request.session] = each.request.agent
        counts = Counter(held.values())
        assert admission.held == len(held) <= SLOTS
        assert admission.waiting <= SLOTS
        assert all(count <= most for count in counts.values())
        if admission.waiting and len(held) < SLOTS:
            assert any(counts[each] == most for each in "abc")


def test_of_those_that_wait_the_agent_with_the_fewest_slots_is_the_next() -> None:
    admission = SlotAdmission(4, Shares(0.5, waiting=2))
    for number, agent in enumerate("aabbccd"):
        admission.wait(asked(number, agent), "r", 0.0)
    assert [each.request.agent for each in admission.next(4)] == ["a", "b", "c", "d"]
    admission.free("a0")
    assert [each.request.agent for each in admission.next(1)] == ["a"]


def test_a_flood_is_refused_unread_and_another_client_gets_its_slot() -> None:
    core = head()
    for number in range(500):
        core.ask(asked(number), f"r{number}", 0.0)
    read = core.prepares()
    assert len(read) == SLOTS // 2
    tells = [tell for tell in core.flush().tells if tell.error is not None]
    assert len(tells) == 500 - SLOTS // 2 - SLOTS
    assert {tell.error.status for tell in tells if tell.error} == {Status.RESOURCE_EXHAUSTED}
    assert all(
        tell.error.retry_after for tell in tells if isinstance(tell.error, ResourceExhausted)
    )
    core.ask(asked(1, "other"), "r", 0.0)
    assert [each.request.agent for each in core.prepares()] == ["other"]


def test_a_request_waits_a_moment_for_a_slot_and_is_refused_behind_it() -> None:
    core = head(share=1.0)
    for number in range(SLOTS + 2):
        core.ask(asked(number), "r", 0.0)
    first, *_ = core.prepares()
    assert refusals(core) == []
    core.unprepared(first.request, first.reply, ResourceExhausted("a reason"))
    assert [each.request.session for each in core.prepares()] == [f"flood{SLOTS}"]
    core.tick(0.4)
    assert refusals(core) == ["flood0"]
    core.tick(0.6)
    assert refusals(core) == [f"flood{SLOTS + 1}"]
    assert not core.is_idle


def test_a_client_that_goes_away_waits_no_more() -> None:
    core = head(share=1.0)
    for number in range(SLOTS + 1):
        core.ask(asked(number), "r", 0.0)
    core.close(f"flood{SLOTS}")
    for number in range(SLOTS):
        core.close(f"flood{number}")
    assert len(core.prepares()) == SLOTS
    assert core.is_idle
    core.prepared(asked(0), "r", 0.0)
    assert core.flush().tells == []


def test_an_agent_spends_a_quota_of_tokens_and_is_told_when_it_may_go_on() -> None:
    core = head(limits=LanguageLimits(quota=2.0))
    assert opened(core, 0, "busy", 0.0, prompt=30)
    assert not opened(core, 1, "busy", 0.0)
    [error] = [tell.error for tell in core.flush().tells if tell.error is not None]
    assert isinstance(error, ResourceExhausted)
    assert 4.0 < error.retry_after < 7.0
    assert opened(core, 0, "other", 0.0)
    assert opened(core, 2, "busy", error.retry_after)


def test_each_session_that_ends_or_is_refused_is_told_of_once_with_its_tokens() -> None:
    core = head()
    assert opened(core, 0, "robot", 0.0)
    session = core.sessions["robot0"]
    [run] = core.plan(0.0)
    core.computed(run, np.zeros((1, 9), np.float32), 0.1)
    [run] = core.plan(0.2)
    core.computed(run, np.zeros((1, 9), np.float32), 0.3)
    assert session.closed
    assert not opened(core, 1, "robot", 0.4, prompt=100)
    assert core.flush().ended == [
        Ended(id_of("robot0"), "robot", Status.OK, 20, 2),
        Ended(id_of("robot1"), "robot", Status.RESOURCE_EXHAUSTED),
    ]
