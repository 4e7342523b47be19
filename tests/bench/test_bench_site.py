"""`swarm bench site`: its verdicts come from the records alone."""

from __future__ import annotations

from bench.faults.site import Received, Submitted, misses, site_figures

CUT, HEALED = 10.0, 20.0
SUBMITTED = [Submitted(number, 9.0 + number, 0.001) for number in range(1, 14)]


def received(*numbers: int, right: bool = True) -> list[Received]:
    return [Received(number, HEALED + 0.1 * number, right) for number in numbers]


def judged(**agents: list[Received]) -> list[str]:
    return misses(site_figures(SUBMITTED, agents, CUT, HEALED))


def test_each_answer_once_and_in_order_for_each_agent_passes() -> None:
    assert judged(a=received(1, 3, 5, 7, 9, 11, 13), b=received(2, 4, 6, 8, 10, 12)) == []


def test_what_is_lost_twice_wrong_or_out_of_order_is_told_apart() -> None:
    assert judged(a=received(*range(1, 13))) == ["1 lost"]
    assert judged(a=received(*range(1, 14)), b=received(4)) == ["1 twice"]
    assert judged(a=received(2, 1, *range(3, 14))) == ["1 out of order"]
    assert judged(a=received(*range(1, 13)), b=received(13, right=False)) == ["1 wrong"]


def test_times_are_counted_from_the_links_return() -> None:
    doc = site_figures(SUBMITTED, {"a": received(*range(1, 14))}, CUT, HEALED)
    assert doc["first_answer_after_s"] == 0.1
    assert doc["caught_up_after_s"] == 1.1  # number 11 was the last one before the return
    assert doc["submitted_while_cut"] == 10
    assert doc["answered_while_cut"] == 0
