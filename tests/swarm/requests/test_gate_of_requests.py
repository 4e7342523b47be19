"""Who is let into a pipeline while priorities are in use, and how many: no clock, no task."""

from __future__ import annotations

import heapq
import random
from collections import deque
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.flow.shares import most_before
from swarm.requests.gate import TurnGate, Window
from swarm.wire.hops import Hop
from swarm.wire.urgency import HIGH, IN_USE_FOR, LOW, NORMAL, WEIGHTS

URGENCIES = st.sampled_from([HIGH, NORMAL, LOW])


def filled(*waiting: tuple[int, str]) -> TurnGate[int]:
    """With these waiting, and no more room than they leave."""
    gate: TurnGate[int] = TurnGate(1, 0.0)
    for number, (urgency, agent) in enumerate(waiting):
        gate.wait(urgency, agent, number)
    return gate


def one_by_one(gate: TurnGate[int]) -> list[int]:
    """In the order of their turns: what was let in ends before the next one is."""
    gate.window.size = 1.0
    order: list[int] = []
    while len(gate):
        size = gate.window.size
        turns = gate.let_in(len(gate))
        assert 1 <= len(turns) <= size + 1
        order += turns
    return order


def test_a_high_one_passes_normal_and_low_ones() -> None:
    gate = filled(*[(NORMAL, "a")] * 5, *[(LOW, "a")] * 5, (HIGH, "b"))
    assert one_by_one(gate)[0] == 10


def test_agents_of_one_priority_have_turns_by_their_shares_however_many_each_sends() -> None:
    gate: TurnGate[str] = TurnGate(1, 0.0)
    for _ in range(400):
        gate.wait(NORMAL, "flood", "flood")
    for _ in range(40):
        gate.wait(NORMAL, "small", "small")
        gate.wait(NORMAL, "paid", "paid", 3.0)
    order = []
    while len(gate):
        order += gate.let_in(len(gate) + int(gate.window.size) - 1)
    first = order[:50]
    assert abs(first.count("paid") - 30) <= 3
    assert abs(first.count("small") - 10) <= 2


@given(st.lists(st.tuples(URGENCIES, st.sampled_from("abc")), max_size=120))
def test_each_has_its_turn_once_and_none_starves(waiting: list[tuple[int, str]]) -> None:
    order = one_by_one(filled(*waiting))
    assert sorted(order) == list(range(len(waiting)))
    lows = [at for at, number in enumerate(order) if waiting[number][0] == LOW]
    bound = most_before(WEIGHTS[HIGH], 1.0) + most_before(WEIGHTS[NORMAL], 1.0)
    assert all(later - at - 1 <= bound for at, later in zip([-1, *lows], lows, strict=False))


def test_who_goes_takes_no_turn() -> None:
    gate = filled((NORMAL, "a"), (HIGH, "a"), (NORMAL, "b"))
    gate.go(HIGH, "a", 1)
    gate.go(HIGH, "a", 1)
    assert one_by_one(gate) == [0, 2]


def test_a_high_one_is_let_in_beside_a_full_pipeline() -> None:
    gate = filled((NORMAL, "a"))
    full = int(gate.window.size)
    assert gate.let_in(full + 1) == []
    for number in range(2 * full):
        gate.wait(HIGH, "a", number)
    # As many again, and then those of others have their turns: high ones do not fill it for ever.
    let_in = gate.let_in(full + 1 + 2 * full)
    assert let_in == list(range(len(let_in)))
    assert 1 <= len(let_in) <= full


def test_the_gate_stands_for_a_while_behind_the_last_priority_and_until_none_waits() -> None:
    gate = filled((NORMAL, "a"))
    gate.keep(5.0)
    assert not gate.is_over(5.0 + IN_USE_FOR - 0.1)
    assert not gate.is_over(5.0 + IN_USE_FOR)
    gate.go(NORMAL, "a", 0)
    assert gate.is_over(5.0 + IN_USE_FOR)


# --- a pipeline in simulated time ------------------------------------------------------------


def pipeline(
    runs: list[float],
    seed: int,
    high_every: int = 0,
    batch: int = 1,
    seconds: float = 20.0,
    late: float = 0.0,
) -> tuple[float, float, list[float]]:
    """Three times the load before stages with runs of that many seconds: answers a second, most
    that were in the pipeline at the end, and the high ones' times. A run of several takes as long
    as one. late: seconds at most for which each message waits for its process."""
    rng, numbers = random.Random(seed), count()
    gate: TurnGate[tuple[int, float, list[Hop]]] = TurnGate(len(runs), 0.0)
    events: list[tuple[float, int, str, object]] = []
    queues: list[deque[tuple[float, tuple[int, float, list[Hop]]]]] = [deque() for _ in runs]
    busy = [False] * len(runs)
    inside, answers, under_way, times = 0, 0, 0, list[float]()
    rate = 3 * batch / max(runs)

    def at(when: float, kind: str, what: object = None) -> None:
        heapq.heappush(events, (when, next(numbers), kind, what))

    def start(stage: int, now: float) -> None:
        if busy[stage] or not queues[stage]:
            return
        busy[stage] = True
        queue = queues[stage]
        highest = max(entry[1][0] for entry in queue)
        if highest == HIGH:
            taken = [entry for entry in queue if entry[1][0] == HIGH][:batch]
        else:
            taken = list(queue)[:batch]
        for entry in taken:
            queue.remove(entry)
            hop = Hop(stage, "n", int((now - entry[0]) * 1e6), int(runs[stage] * 1e6))
            entry[1][2].append(hop)
        at(now + runs[stage] * rng.uniform(0.8, 1.2), "ran", (stage, [e[1] for e in taken]))

    at(0.0, "came")
    while events:
        now, _, kind, what = heapq.heappop(events)
        if now > seconds:
            break
        if kind == "came":
            number = next(numbers)
            urgency = HIGH if high_every and number % high_every == 0 else NORMAL
            inside += 1
            gate.wait(urgency, "a", (urgency, now, []))
            at(now + rng.expovariate(rate), "came")
        elif kind == "reached":
            assert isinstance(what, tuple)
            stage, sent, request = what
            queues[stage].append((sent, request))
            start(stage, now)
        else:
            assert isinstance(what, tuple)
            stage, requests = what
            busy[stage] = False
            for request in requests:
                if stage + 1 < len(runs):
                    at(now + late * rng.random(), "reached", (stage + 1, now, request))
                    continue
                inside -= 1
                answers += 1
                under_way -= 1
                if request[0] == HIGH:
                    times.append(now - request[1])
                gate.window.answered(request[2], len(gate) > 0, now)
            start(stage, now)
        for turn in gate.let_in(inside):
            under_way += 1
            at(now + late * rng.random(), "reached", (0, now, turn))
    return answers / seconds, under_way, times


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("runs", [[0.005], [0.005] * 3, [0.002, 0.01, 0.003], [0.02] * 6])
def test_few_are_in_the_pipeline_and_its_slowest_stage_never_idles(
    runs: list[float], batch: int
) -> None:
    rate, under_way, _ = pipeline(runs, 1, batch=batch)
    assert rate >= 0.9 * batch / max(runs)
    assert under_way <= batch * 6 * (len(runs) + 1) + 4


@pytest.mark.parametrize("runs", [[0.005], [0.005] * 3, [0.002, 0.01, 0.003]])
def test_at_three_times_the_load_high_ones_wait_for_little_more_than_runs_that_have_begun(
    runs: list[float],
) -> None:
    rate, _, times = pipeline(runs, 2, high_every=20)
    assert rate >= 0.95 / max(runs)
    times.sort()
    assert times[len(times) * 99 // 100] <= 1.2 * (sum(runs) + max(runs) * (len(runs) + 1))


@pytest.mark.parametrize("late", [0.005, 0.02, 0.1])
@pytest.mark.parametrize("runs", [[0.005], [0.005] * 3, [0.002, 0.01, 0.003]])
def test_messages_that_wait_for_busy_processes_let_the_slowest_stage_idle_little(
    runs: list[float], late: float
) -> None:
    rate, _, times = pipeline(runs, 3, high_every=20, seconds=60.0, late=late)
    assert rate >= 0.8 / max(runs)
    times.sort()
    waits = 1.5 * len(runs) * late
    assert times[len(times) * 99 // 100] <= 1.2 * (sum(runs) + max(runs) * (len(runs) + 1)) + waits


def test_answers_without_hops_teach_nothing() -> None:
    window = Window(3)
    size = window.size
    for _ in range(100):
        window.answered((), True, 1.0)
    assert window.size == size


@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**6)), max_size=400))
def test_the_window_stays_within_its_bounds(hops: list[tuple[int, int]]) -> None:
    window = Window(3)
    for queue, compute in hops:
        window.answered([Hop(1, "n", queue, compute)], True, 100.0)
        assert 4.0 <= window.size <= 4096.0
