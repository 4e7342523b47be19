"""`swarm bench auto --events cut`: what it counts, and one cut with real servers."""

from __future__ import annotations

from typing import Any

import pytest
from support.cut_link import why_not

from bench.auto.cutting import CutPlan, Told, agreement, misses, play, slots_of, went_back

HEALED = 10.0
AB = (1, 4)
CD = (5, 8)


def test_nodes_agree_once_each_has_told_the_same_plan_and_what_differs_later_is_counted() -> None:
    told = [Told(9.0, "a", 2, AB), Told(9.5, "b", 1, CD), Told(11.0, "a", 2, AB)]
    assert agreement(told, 2, HEALED) == (None, 0.0)
    told += [Told(12.0, "b", 2, None), Told(20.0, "a", 3, AB), Told(20.5, "b", 3, CD)]
    assert agreement(told, 2, HEALED) == (2.0, 0.5)
    assert agreement([*told, Told(30.0, "a", 4, AB), Told(33.0, "a", 4, AB)], 2, HEALED) == (2, 3)


def test_a_node_that_fills_a_slot_again_behind_the_heal_went_to_and_fro() -> None:
    told = [Told(9.0, "a", 1, CD), Told(11.0, "a", 2, None), Told(70.0, "a", 3, CD)]
    [row] = slots_of(told, HEALED, 2).values()
    assert row == [None, CD], "the plan from before the cut does not count"
    assert not went_back(row)
    told += [Told(80.0, "a", 4, AB), Told(81.0, "a", 5, CD)]
    assert went_back(slots_of(told, HEALED, 2)["a"])


def document(**more: Any) -> dict[str, Any]:
    requests = {"lost": 0, "wrong": 0, "first_answer_after_heal_s": 0.1}
    fine = {
        "plans_after_heal": [{"at_s": 3.0}, {"at_s": 64.0}],
        "one_plan_after_s": 1.0,
        "to_and_fro": [],
    }
    return fine | {"requests": {"near": requests | more}}


def test_a_fight_and_lost_requests_are_misses() -> None:
    assert misses(document()) == []
    assert len(misses(document() | {"plans_after_heal": [{"at_s": 3.0}, {"at_s": 7.0}]})) == 1
    assert len(misses(document() | {"one_plan_after_s": None, "to_and_fro": ["a"]})) == 2
    assert len(misses(document(lost=1))) == 1
    assert len(misses(document(first_answer_after_heal_s=None))) == 1


@pytest.mark.benchmark
@pytest.mark.netns
async def test_the_halves_of_a_cut_network_know_one_plan_soon_and_lose_no_request() -> None:
    if reason := why_not():
        pytest.skip(reason)
    # Servers may take ten seconds to elect a leader for the half that goes on.
    found = await play(CutPlan(nodes=5, rate=8.0, cut=20.0, watched=20.0), lambda text: None)
    assert misses(found) == []
    assert found["plans_while_cut"], "the half with the key goes on by a plan of its own"
    assert len(found["plans_after_heal"]) <= 1
    near = found["requests"]["near"]
    assert near["after"]["answered"] == near["after"]["requests"]
