"""One stage, with fakes around it: batches, budgets, quotas, full lanes, restarts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import nodes.stage.outbox
import numpy as np
import pytest
from stage_bench import LIMIT, POISON, Bench, FakeDelivery, FakeModel

from shards.errors import RunError
from swarm.errors import NotConnected, ResourceExhausted, Status, SwarmError, Unavailable
from swarm.flow.batching import BatchLimit
from swarm.link import LinkMessage
from swarm.wire.messages import Features


@pytest.fixture
async def bench() -> AsyncIterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(model: FakeModel | None = None, **options: Any) -> Bench:
        made.append(Bench(model or FakeModel(), **options))
        return made[-1]

    yield make
    for each in made:
        each.server.close()


# --- batches ----------------------------------------------------------------------------


async def test_a_batch_gives_each_request_what_it_would_get_alone(
    bench: Callable[..., Bench],
) -> None:
    together = bench(FakeModel(slow=0.002))
    sent = [together.send(float(n)) for n in range(30)]
    await together.all_ended(*sent)
    assert max(together.model.batches) > 1
    alone = bench(max_batch=1)
    await alone.all_ended(*[alone.send(float(n)) for n in range(30)])
    assert set(alone.model.batches) == {1}
    batched, single = together.answers(), alone.answers()
    assert set(batched) == set(single) == {f"r{n}" for n in range(1, 31)}
    for name, result in batched.items():
        np.testing.assert_array_equal(result.outputs["x"], single[name].outputs["x"])
    assert {delivery.ended for delivery in sent} == {"ack"}
    assert max(result.hops[0].batch for result in batched.values()) > 1


async def test_requests_of_different_shapes_are_not_run_together(
    bench: Callable[..., Bench],
) -> None:
    b = bench(FakeModel(slow=0.02))
    shapes = [(1, 4) if n % 3 else (1, 6) for n in range(12)]
    await b.all_ended(*[b.send(tensors={"x": np.zeros(s, np.float32)}) for s in shapes])
    got = [b.answers()[f"r{n + 1}"].outputs["x"].shape for n in range(12)]
    assert got == shapes


@pytest.mark.parametrize("error", [RunError("poison"), ValueError("poison")])
async def test_a_poison_member_does_not_fail_its_companions(
    bench: Callable[..., Bench], error: Exception
) -> None:
    b = bench(FakeModel(slow=0.01))
    b.model.error = error
    first = b.send(0.0)  # keeps the worker busy while the others come together
    values = [float(n) if n != 5 else POISON for n in range(1, 9)]
    sent = [b.send(value) for value in values]
    await b.all_ended(first, *sent)
    answers = b.answers()
    assert len(answers) == 9
    for number, value in enumerate(values):
        result = answers[f"r{number + 2}"]
        if value == POISON:
            assert (result.status, result.stage, result.node) == (Status.INTERNAL, 2, "n1")
            assert "poison" in result.message
        else:
            assert result.status is Status.OK
            assert result.outputs["x"][0, 0] == value + 1
    assert b.server.stats.counters.failed == 1


# --- budgets ----------------------------------------------------------------------------


async def test_work_whose_budget_ended_in_the_lane_is_answered_before_computing(
    bench: Callable[..., Bench],
) -> None:
    for model in (FakeModel(), FakeModel(compute_ms=0.01)):  # by the worker, and inline
        b = bench(model)
        late = b.send(budget=1.0, age=1.5)
        await b.all_ended(late)
        result = b.answers()["r1"]
        assert (result.status, result.stage) == (Status.DEADLINE_EXCEEDED, 2)
        assert "1500.0 ms in the lane of stage 2" in result.message
        assert (late.ended, model.batches) == ("ack", [])
        assert b.server.stats.counters.expired == 1


async def test_the_stage_that_used_up_the_time_is_named(bench: Callable[..., Bench]) -> None:
    b = bench()
    hop = {"stage": 1, "node": "slow", "queue_us": 500_000, "compute_us": 2_000_000, "batch": 1}
    await b.all_ended(b.send(budget=0.0, age=0.1, hops=[hop]))
    assert "2500.0 ms in stage 1" in b.answers()["r1"].message


async def test_what_cannot_finish_in_time_is_not_started(bench: Callable[..., Bench]) -> None:
    b = bench(start_check=True)
    now = time.monotonic()
    for _ in range(20):
        b.server.stats.compute.add(5.0, now)
    await b.all_ended(b.send(budget=1.0))
    assert b.answers()["r1"].status is Status.DEADLINE_EXCEEDED
    assert b.model.batches == []


async def test_a_run_past_its_budget_is_terminated(bench: Callable[..., Bench]) -> None:
    b = bench(FakeModel(slow=30.0))
    began = time.monotonic()
    sent = b.send(budget=0.2)
    await b.all_ended(sent)
    assert time.monotonic() - began < 10.0
    result = b.answers()["r1"]
    assert (result.status, sent.ended) == (Status.DEADLINE_EXCEEDED, "ack")
    assert "during the run of stage 2" in result.message
    b.model.slow = 0.0  # and the worker is free again
    after = b.send()
    await b.all_ended(after)
    assert b.answers()["r2"].status is Status.OK


async def test_what_waits_behind_a_long_run_is_answered_when_its_budget_is_over(
    bench: Callable[..., Bench],
) -> None:
    b = bench(FakeModel(slow=0.5))
    first, second = b.send(budget=10.0), b.send(budget=0.1)
    await b.all_ended(first, second)
    assert b.answers()["r1"].status is Status.OK
    assert b.answers()["r2"].status is Status.DEADLINE_EXCEEDED
    assert b.model.batches == [1]


async def test_the_budget_that_travels_on_is_what_is_left(bench: Callable[..., Bench]) -> None:
    b = bench(FakeModel(slow=0.1), stage=1)
    await b.all_ended(b.send(budget=5.0, age=1.0))
    [(subject, features)] = b.publisher.stored
    assert subject == "swarm.t.features.m.1.2.any"
    assert 1.0e6 < features.budget_us < 3.95e6
    assert (features.stage, [hop["stage"] for hop in features.hops]) == (2, [1])
    assert features.hops[0]["queue_us"] >= 1_000_000


# --- quotas -----------------------------------------------------------------------------


async def test_an_agent_over_its_quota_is_refused_and_others_are_not(
    bench: Callable[..., Bench],
) -> None:
    b = bench(stage=1, quota=20.0)  # and a burst of five
    rogue = [b.send(agent="rogue") for _ in range(100)]
    good = [b.send(agent=f"good-{n}") for n in range(10)]
    await b.all_ended(*rogue, *good)
    refused = b.answers()
    assert all(result.status is Status.RESOURCE_EXHAUSTED for result in refused.values())
    assert all("'rogue'" in result.message for result in refused.values())
    served = [features.agent for _, features in b.publisher.stored]
    assert 5 <= served.count("rogue") <= 25
    assert len(refused) == 100 - served.count("rogue")
    assert sorted(set(served) - {"rogue"}) == sorted(f"good-{n}" for n in range(10))
    assert b.server.stats.counters.refused == len(refused)


async def test_a_quota_is_the_first_stages_business(bench: Callable[..., Bench]) -> None:
    b = bench(stage=2, quota=1.0)
    sent = [b.send(agent="one") for _ in range(20)]
    await b.all_ended(*sent)
    assert {result.status for result in b.answers().values()} == {Status.OK}


# --- the next lane ----------------------------------------------------------------------


async def test_while_the_next_lane_is_full_the_message_is_held_and_then_passed_on(
    bench: Callable[..., Bench],
) -> None:
    b = bench(stage=1)
    b.publisher.refusals = [ResourceExhausted("full") for _ in range(10)]
    sent = b.send(5.0)
    await asyncio.sleep(0.02)
    assert not sent.settled  # not acked: this lane fills up in turn
    await b.all_ended(sent)
    assert (sent.ended, b.publisher.tries, len(b.model.batches)) == ("ack", 11, 1)
    assert b.server.stats.counters.blocked == 10
    [(_, features)] = b.publisher.stored
    assert features.tensors["x"][0, 0] == 6
    assert b.answers() == {}


async def test_a_lane_that_stays_full_is_a_refusal_when_the_budget_is_over(
    bench: Callable[..., Bench],
) -> None:
    b = bench(stage=1)
    b.publisher.refusals = [ResourceExhausted("full") for _ in range(1000)]
    sent = b.send(budget=0.1)
    await b.all_ended(sent)
    result = b.answers()["r1"]
    assert (result.status, sent.ended) == (Status.RESOURCE_EXHAUSTED, "ack")
    assert "stage 2 is full" in result.message


async def test_a_message_that_was_given_back_is_not_sent_on_later(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes.stage.outbox, "RETRY_FULL_LANE", 0.05)
    b = bench(stage=1)
    b.publisher.refusals = [ResourceExhausted("full")]
    sent = b.send()
    async with asyncio.timeout(LIMIT):
        while not b.publisher.tries:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    sent.nak()
    await asyncio.sleep(0.15)
    assert (b.publisher.tries, b.publisher.stored) == (1, [])


@pytest.mark.parametrize(
    ("error", "ended"), [(Unavailable("no PubAck"), "nak"), (NotConnected("lost"), "")]
)
async def test_what_was_not_stored_goes_back_to_its_lane(
    bench: Callable[..., Bench], error: SwarmError, ended: str
) -> None:
    """By a nak; or, with the connection, by the lane itself."""
    b = bench(stage=1)
    b.publisher.refusals = [error]
    sent = b.send()
    async with asyncio.timeout(LIMIT):
        while not b.publisher.tries:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    await asyncio.sleep(0.02)
    assert (sent.ended, b.answers()) == (ended, {})


@pytest.mark.parametrize("stage", [1, 2])
async def test_an_output_that_cannot_be_sent_is_a_failure_and_no_hang(
    bench: Callable[..., Bench], stage: int
) -> None:
    b = bench(stage=stage)
    b.model.run = lambda tensors, cancel=None: {"x": np.zeros(3, np.complex64)}  # type: ignore[method-assign]
    sent = b.send()
    await b.all_ended(sent)
    assert b.answers()["r1"].status is not Status.OK
    # It was computed: a stage that cannot send must not look like one that does nothing.
    assert b.server.stats.compute.count == 1
    assert b.server.stats.counters.served == 0
    del b.model.run
    after = b.send()
    await b.all_ended(after)
    assert after.ended == "ack"


# --- bad messages -----------------------------------------------------------------------


async def test_what_cannot_be_decoded_is_buried_and_the_next_is_served(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    bad = FakeDelivery(b.lane, b"\xc1 nonsense")
    b.server.delivered(bad)  # type: ignore[arg-type]
    assert bad.ended == "term"
    assert ("swarm.t.dead.m", b"\xc1 nonsense") in b.link.sent
    await b.all_ended(b.send())
    assert b.answers()["r1"].status is Status.OK


async def test_what_is_meant_for_another_stage_or_fits_not_is_answered(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    b.stage = 1
    await b.all_ended(b.send())
    b.stage = 2
    await b.all_ended(b.send(tensors={"y": np.zeros(3, np.float32)}))
    assert {r.status for r in b.answers().values()} == {Status.INVALID_ARGUMENT}
    assert len(b.answers()) == 2


# --- restarts ---------------------------------------------------------------------------


@pytest.mark.parametrize("compute_ms", [5.0, 0.01], ids=["worker", "inline"])
async def test_a_suspended_stage_gives_back_what_still_arrives(
    bench: Callable[..., Bench], compute_ms: float
) -> None:
    """Parked pulls bring messages for another second; a stage that cannot be trusted must
    neither compute them nor hold them."""
    b = bench(FakeModel(compute_ms))
    b.server.suspend()
    assert b.lane.paused
    late = [b.send() for _ in range(5)]
    await b.all_ended(*late)
    assert {delivery.ended for delivery in late} == {"nak"}
    assert b.model.batches == []
    b.server.resume()
    after = b.send()
    await b.all_ended(after)
    assert after.ended == "ack"
    assert not b.lane.paused


async def test_a_hung_run_is_abandoned_and_its_message_given_back(
    bench: Callable[..., Bench],
) -> None:
    b = bench(FakeModel(slow=0.5))
    hung = b.send()
    queued = b.send()
    await asyncio.sleep(0.05)
    b.server.suspend()
    assert (hung.ended, queued.ended) == ("nak", "nak")
    b.model.slow = 0.0
    b.server.resume()
    after = b.send()
    await b.all_ended(after)
    await asyncio.sleep(0.7)  # the hung run has ended by now: nobody wants its result
    assert list(b.answers()) == ["r3"]


async def test_a_drain_gives_back_the_queue_and_finishes_what_runs(
    bench: Callable[..., Bench],
) -> None:
    b = bench(FakeModel(slow=0.2), max_batch=1)
    running = b.send()
    await asyncio.sleep(0.02)
    queued = [b.send() for _ in range(5)]
    await asyncio.wait_for(b.server.drain(), LIMIT)
    assert running.ended == "ack"
    assert {delivery.ended for delivery in queued} == {"nak"}
    assert list(b.answers()) == ["r1"]


async def test_the_self_test_notices_a_model_that_computes_otherwise(
    bench: Callable[..., Bench],
) -> None:
    b = bench()
    known = {"x": np.arange(4, dtype=np.float32).reshape(1, 4)}
    assert b.server.self_test()  # nothing is known yet
    b.server.learn_known(known)
    assert b.server.self_test()
    b.model.run = lambda tensors, cancel=None: {"x": tensors["x"] + 2}  # type: ignore[method-assign]
    assert not b.server.self_test()


async def test_a_cancelled_request_that_waits_is_dropped_and_the_others_are_served(
    bench: Callable[..., Bench],
) -> None:
    it = bench(FakeModel(slow=0.1), max_batch=1)
    first, second, third = it.send(1.0), it.send(2.0), it.send(3.0)
    it.server.cancel("r2")
    assert second.ended == "ack"
    await it.all_ended(first, third)
    assert sorted(it.answers()) == ["r1", "r3"]
    assert it.server.stats.counters.cancelled == 1


async def test_a_cancelled_run_is_ended_and_answers_nobody(bench: Callable[..., Bench]) -> None:
    it = bench(FakeModel(slow=LIMIT / 2), max_batch=1)
    only = it.send(1.0, budget=LIMIT)
    await asyncio.sleep(0.02)
    it.server.cancel("r1")
    started = time.monotonic()
    await it.all_ended(only)
    assert time.monotonic() - started < LIMIT / 4
    assert (only.ended, it.answers()) == ("ack", {})


async def test_a_batch_of_which_one_member_was_cancelled_runs_to_its_end(
    bench: Callable[..., Bench],
) -> None:
    it = bench(FakeModel(slow=0.1), max_batch=4)
    it.server._waiting.limit = BatchLimit(largest=4, target_s=LIMIT)  # slow runs do not lower it
    front = it.send(0.0)  # the others wait behind it, and run together
    second, third = it.send(1.0), it.send(2.0)
    await it.all_ended(front)
    it.server.cancel("r2")
    await it.all_ended(second, third)
    assert it.model.batches[-1] == 2
    assert "r3" in it.answers()


async def test_an_attempt_that_comes_after_its_cancellation_is_not_computed(
    bench: Callable[..., Bench],
) -> None:
    it = bench(FakeModel())
    it.server.cancel("r1")
    late, other = it.send(1.0), it.send(2.0)
    await it.all_ended(late, other)
    assert late.ended == "ack"
    assert list(it.answers()) == ["r2"]


# --- runs on the loop ------------------------------------------------------------------


async def test_a_lone_short_run_needs_no_thread_and_under_load_they_gather(
    bench: Callable[..., Bench],
) -> None:
    it = bench(FakeModel(compute_ms=2.0, slow=0.002), inline_alone_below=0.010)
    here = threading.get_ident()
    for _ in range(3):
        await it.all_ended(it.send())
        await asyncio.sleep(0.05)
    assert set(it.model.threads) == {here}
    it.model.threads.clear()
    burst = [it.send() for _ in range(20)]
    await it.all_ended(*burst)
    assert set(it.model.threads) - {here}, "none of a burst went to the worker"
    assert max(it.model.batches) > 1
    assert len(it.answers()) == 23


async def test_a_longer_run_never_blocks_the_loop(bench: Callable[..., Bench]) -> None:
    it = bench(FakeModel(compute_ms=20.0, slow=0.02), inline_alone_below=0.010)
    await it.all_ended(it.send())
    assert threading.get_ident() not in it.model.threads


async def test_a_run_on_the_loop_is_ended_from_outside_when_its_budget_is_over(
    bench: Callable[..., Bench],
) -> None:
    it = bench(FakeModel(compute_ms=2.0, slow=LIMIT / 2), inline_alone_below=0.010)
    done = threading.Event()

    def guard() -> None:
        while not done.wait(0.02):
            it.server.end_overdue(time.monotonic())

    thread = threading.Thread(target=guard)
    thread.start()
    started = time.monotonic()
    late = it.send(budget=0.2)
    done.set()
    thread.join()
    assert 0.15 < time.monotonic() - started < LIMIT / 4
    assert it.answers()["r1"].status is Status.DEADLINE_EXCEEDED
    assert late.ended == "ack"


async def test_a_run_on_the_loop_that_fails_is_answered(bench: Callable[..., Bench]) -> None:
    it = bench(FakeModel(compute_ms=2.0), inline_alone_below=0.010)
    it.model.error = ValueError("not one of ours")
    only = it.send(POISON)
    await it.all_ended(only)
    assert (it.answers()["r1"].status, only.ended) == (Status.INTERNAL, "ack")


# --- fast mode -------------------------------------------------------------------------


async def test_a_message_of_fast_mode_that_comes_twice_is_passed_on_once(
    bench: Callable[..., Bench],
) -> None:
    """Two nodes may cover the stage before, for a moment; another attempt is another message."""
    it = bench(FakeModel(compute_ms=0.01), stage=1)
    made = it.send(fresh=True)
    passed = len(it.link.sent)
    it.server.delivered(made)
    assert len(it.link.sent) == passed > 0
    features = Features.decode(made.data)
    features.attempt += 1
    made.data = b"".join(features.parts())
    it.server.delivered(made)
    assert len(it.link.sent) == passed + 1


async def test_in_fast_mode_a_next_stage_without_a_node_is_told_to_the_requester_at_once(
    bench: Callable[..., Bench],
) -> None:
    it = bench(FakeModel(compute_ms=0.01), stage=1)
    for _ in range(nodes.stage.outbox.KEPT_FRESH + 5):
        made = it.send(fresh=True)
    assert (made.ended, it.answers()) == ("ack", {})
    [(pattern, told)] = it.link.callbacks.items()
    assert it.link.replies[-1].startswith(pattern.removesuffix("*"))

    def nobody(reply: str, headers: bytes = b"NATS/1.0 503\r\n\r\n") -> None:
        told(LinkMessage(reply, "", headers, b""))

    last = f"r{it.number}"
    nobody(it.link.replies[-1])
    nobody(it.link.replies[-1])  # once is enough
    nobody(it.link.replies[0])  # too long ago
    nobody(it.link.replies[-2], b"NATS/1.0\r\n\r\n")  # no such message
    [(name, result)] = it.answers().items()
    assert (name, result.status, result.stage) == (last, Status.UNAVAILABLE, 2)
    assert "no node serves stage 2" in result.message
