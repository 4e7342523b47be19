"""Flows share the turns by their weights, and none starves."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.flow.shares import MOST_KNOWN, FairShares, most_before
from swarm.wire.urgency import HIGH, LOW, NORMAL, WEIGHTS

FLOWS = st.sampled_from([HIGH, NORMAL, LOW])
# What comes and what is served: a flow, or None for a turn.
STEPS = st.lists(st.one_of(FLOWS, st.none()), max_size=300)


@given(STEPS)
def test_no_flow_that_waits_is_passed_by_more_than_the_bound(steps: list[int | None]) -> None:
    shares: FairShares[int, int] = FairShares()
    waiting: Counter[int] = Counter()
    passed = {flow: Counter[int]() for flow in WEIGHTS}  # since each began to wait, or was served
    for number, step in enumerate([*steps, *[None] * len(steps)]):
        if step is not None:
            shares.push(step, number, WEIGHTS[step])
            waiting[step] += 1
        elif shares:
            flow = next(f for f in WEIGHTS if waiting[f] and steps[shares.head()] == f)
            shares.pop()
            waiting[flow] -= 1
            for other in WEIGHTS:
                if other == flow or not waiting[other]:
                    passed[other].clear()
                else:
                    passed[other][flow] += 1
                    bound = most_before(WEIGHTS[flow], WEIGHTS[other])
                    assert passed[other][flow] <= bound
    assert not shares


@given(STEPS)
def test_each_flow_is_first_in_first_out_and_nothing_is_lost(steps: list[int | None]) -> None:
    shares: FairShares[int, int] = FairShares()
    served: list[int] = []
    for number, step in enumerate([*steps, *[None] * len(steps)]):
        if step is not None:
            shares.push(step, number, WEIGHTS[step])
        elif shares:
            head = shares.head()
            served.append(shares.pop())
            assert served[-1] == head
    assert sorted(served) == [number for number, step in enumerate(steps) if step is not None]
    for flow in WEIGHTS:
        of_flow = [item for item in served if steps[item] == flow]
        assert of_flow == sorted(of_flow)


def test_flows_that_all_wait_get_turns_by_their_weights() -> None:
    shares: FairShares[int, int] = FairShares()
    for _ in range(1300):
        for flow, weight in WEIGHTS.items():
            shares.push(flow, flow, weight)
    turns = Counter(shares.pop() for _ in range(1300))
    assert all(abs(turns[flow] - 100 * weight) <= 1 for flow, weight in WEIGHTS.items())


@given(st.integers(0, 200), st.integers(0, 200))
def test_a_high_one_after_a_pause_passes_all_that_wait(before: int, served: int) -> None:
    shares: FairShares[int, str] = FairShares()
    for _ in range(before):
        shares.push(NORMAL, "normal", WEIGHTS[NORMAL])
        shares.push(LOW, "low", WEIGHTS[LOW])
    for _ in range(min(served, 2 * before)):
        shares.pop()
    shares.push(HIGH, "high", WEIGHTS[HIGH])
    assert shares.pop() == "high"


def test_what_was_let_go_takes_no_turn() -> None:
    shares: FairShares[str, int] = FairShares()
    for number in range(4):
        shares.push("a", number)
    assert [shares.remove(flow, 1) for flow in ("a", "a", "b")] == [True, False, False]
    assert [shares.pop() for _ in range(3)] == [0, 2, 3]
    with pytest.raises(IndexError):
        shares.pop()


def test_flows_that_are_gone_are_forgotten() -> None:
    """Agents name themselves: any number of them must not fill the memory, nor slow a turn."""
    shares: FairShares[int, int] = FairShares()
    for flow in range(50 * MOST_KNOWN):
        shares.push(flow, flow)
        assert shares.pop() == flow
    assert shares.flows <= MOST_KNOWN
