"""What each constant of handing over is for: without it, simulated hosts come off worse."""

from __future__ import annotations

from math import inf

import pytest
from simulated_host import Process, host, stored
from support.handover import change_handover

from swarm.transport.handover import policy

Patch = pytest.MonkeyPatch


def every(seconds: float, until: float, since: float = 0.0) -> list[float]:
    return [since + n * seconds for n in range(int((until - since) / seconds))]


def test_a_short_run_may_take_a_little_longer_than_usual(monkeypatch: Patch) -> None:
    """A killed process, too, keeps its socket for some milliseconds."""

    def in_vain() -> int:
        run = host(Process(run=0.0001, word_after=[*[0.001] * 30, 0.008]))
        run.send_at(every(0.050, 2.0))
        return len(stored(run.run()))

    assert in_vain() == 0
    change_handover(monkeypatch, least_patience=0.001)
    assert in_vain() > 0


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("most_for_short", 0.0, [0.015]),
        ("usual_deviations", 0, [0.001, 0.001, 0.017]),
    ],
)
def test_the_words_of_short_runs_may_take_as_long_as_they_usually_do(
    monkeypatch: Patch, name: str, value: float, words: list[float]
) -> None:
    def in_vain() -> int:
        run = host(Process(run=0.0001, word_after=words))
        run.send_at(every(0.050, 3.0))
        return len(stored(run.run()))

    assert in_vain() == 0
    change_handover(monkeypatch, **{name: value})
    assert in_vain() > 0


def test_one_late_parcel_does_not_store_those_that_follow(monkeypatch: Patch) -> None:
    def not_handed() -> int:
        run = host(Process(run=0.0001, word_after=[*[0.001] * 19, 0.050]))
        run.send_at(every(0.010, 4.0))
        return sum(not fate.handed for fate in run.run())

    assert not_handed() == 0
    change_handover(monkeypatch, late_in_a_row=1)
    assert not_handed() > 200


def test_a_parcel_waits_two_seconds_at_most_for_a_process_that_lives(monkeypatch: Patch) -> None:
    def longest() -> float:
        run = host(Process(run=100.0), usual=0.9, stage=1, last=9)
        run.send_at([0.0])
        [fate] = run.run(until=200.0)
        return fate.waited

    assert longest() == policy.HANDOVER.most_patience
    change_handover(monkeypatch, most_patience=inf)
    assert longest() > 5.0


@pytest.mark.parametrize(
    ("name", "value"), [("crowd", 1000), ("crowded_for", 0.0), ("crowded_patience", 0.0)]
)
def test_in_a_crowd_event_loops_wait_for_each_other_and_nothing_is_stored_for_it(
    monkeypatch: Patch, name: str, value: float
) -> None:
    """Words come after 30 ms while five parcels are under way, and for a while after."""

    def in_vain() -> int:
        run = host(Process(run=0.0001, word_after=[0.030]))
        run.policy.handed_over("before", run.peer, 0.0, 0.0, together=name == "crowded_for")
        run.policy.acked("before", 0.001)
        if name == "crowded_for":
            run.send_at([0.060])  # alone
        else:
            run.send_at([0.0] * 12)
        return len(stored(run.run()))

    usual = in_vain()
    change_handover(monkeypatch, **{name: value})
    assert in_vain() > usual


def test_of_a_stopped_process_at_most_a_number_of_parcels_has_to_be_stored(
    monkeypatch: Patch,
) -> None:
    def in_vain() -> int:
        run = host(Process(run=0.0, stopped=(0.0, 10.0)))
        run.send_at([0.0001 * n / 10 for n in range(600)])
        return len(stored(run.run()))

    assert in_vain() == policy.HANDOVER.most_in_flight
    change_handover(monkeypatch, most_in_flight=10_000)
    assert in_vain() == 600


def test_of_a_stopped_process_at_most_a_second_of_work_has_to_be_stored(
    monkeypatch: Patch,
) -> None:
    def in_vain() -> int:
        run = host(Process(run=0.1, stopped=(0.0, 10.0)))
        run.send_at([0.001 * n for n in range(60)])
        return len(stored(run.run()))

    assert in_vain() == 10
    change_handover(monkeypatch, most_work_in_flight=inf)
    assert in_vain() == 60


@pytest.mark.parametrize("name", ["silent_runs", "answer_within"])
def test_a_stopped_process_of_long_runs_is_found_out_within_two_runs(
    monkeypatch: Patch, name: str
) -> None:
    def longest() -> float:
        run = host(Process(run=0.1, stopped=(1.0, 20.0)))
        run.send_at(every(0.030, 1.5, since=0.7))
        return max(fate.waited for fate in run.run() if fate.sent > 1.0)

    found_within = policy.HANDOVER.silent_runs * 0.1 + policy.HANDOVER.answer_within
    assert longest() <= found_within + 1e-9
    change_handover(monkeypatch, **{name: inf})
    assert longest() > 2 * found_within


def test_a_process_of_short_runs_is_not_asked_for_nothing(monkeypatch: Patch) -> None:
    def questions() -> int:
        # Twice the usual time; each word is a sign of life.
        run = host(Process(run=0.004), usual=0.002)
        run.send_at([t for at in every(0.5, 5.0) for t in [at] * 40], together=True)
        assert stored(run.run()) == []
        return run.questions

    assert questions() == 0
    change_handover(monkeypatch, silent_least=0.0)
    assert questions() > 5


def test_a_living_process_whose_loop_is_busy_has_time_to_answer(monkeypatch: Patch) -> None:
    def in_vain() -> int:
        # These runs take twice as long as usual, and the loop answers after 15 ms.
        run = host(Process(run=0.100, answers_in=0.015), usual=0.050)
        run.send_at([0.0, 0.001, 0.002])
        return len(stored(run.run()))

    usual = in_vain()
    change_handover(monkeypatch, answer_within=0.001)
    assert in_vain() > usual


def test_a_process_that_is_full_is_not_asked_to_take_each_parcel(monkeypatch: Patch) -> None:
    def refusals() -> int:
        run = host(Process(run=0.025, refuses=(0.0, 1.0)))
        run.send_at(every(0.002, 1.0))
        run.run()
        return run.refusals

    assert refusals() < 15
    change_handover(monkeypatch, refused_pause=0.0, refused_pause_most=0.0)
    assert refusals() > 300


def test_a_process_that_has_room_again_is_soon_handed_something(monkeypatch: Patch) -> None:
    def first_taken() -> float:
        run = host(Process(run=0.001, refuses=(0.0, 3.0)))
        run.send_at(every(0.002, 20.0))
        return min((f.sent for f in run.run() if f.how == "done"), default=inf) - 3.0

    assert first_taken() <= policy.HANDOVER.refused_pause_most
    change_handover(monkeypatch, refused_pause_most=inf)
    assert first_taken() > 1.0


def test_a_stopped_process_delays_parcels_once_a_second_and_not_always(
    monkeypatch: Patch,
) -> None:
    def delayed() -> int:
        run = host(Process(run=0.010, stopped=(0.0, 30.0)))
        run.send_at(every(0.010, 5.0))
        return sum(fate.waited > 0.005 for fate in run.run(until=100.0))

    assert delayed() < 100
    change_handover(monkeypatch, hang_pause=0.0)
    assert delayed() > 300


# --- a stage that stops, is slow, or dies -------------------------------------------------


@pytest.mark.parametrize("run_s", [0.0001, 0.002, 0.025, 0.2])
@pytest.mark.parametrize("trouble", ["none", "stops", "is slow", "dies", "refuses"])
def test_every_parcel_is_safe_soon_whatever_its_process_does(run_s: float, trouble: str) -> None:
    process = Process(run=run_s)
    match trouble:
        case "stops":
            process.stopped = (1.0, 2.5)
        case "is slow":
            process.word_after = [4 * run_s]
        case "dies":
            process.ends = 1.0
        case "refuses":
            process.refuses = (1.0, 1.5)
    run = host(process, usual=run_s)
    # Half of what the process can do, from a constant stream.
    run.send_at(every(max(0.004, 2 * run_s), 5.0))
    fates = run.run(until=100.0)
    assert all(fate.how for fate in fates)
    assert max(fate.waited for fate in fates) <= policy.HANDOVER.most_patience
    if trouble == "none":
        assert {fate.how for fate in fates} == {"done"}
    if trouble in ("stops", "refuses"):
        after = [fate for fate in fates if fate.sent > 3.6]
        assert {fate.how for fate in after} == {"done"}, "it is handed parcels again"
