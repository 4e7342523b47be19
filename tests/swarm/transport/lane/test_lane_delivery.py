"""What a lane promises of each message: delivered, settled once, never forgotten."""

from __future__ import annotations

import asyncio
import time

import pytest
from lane_tools import CONSUMER, STREAM, Bench, bodies
from real_server import cut
from support.waiting import GENEROUS, eventually

from swarm.clock import ServerClock
from swarm.fleet.priorities import FALLBACK, PRIMARY, STANDBY
from swarm.link import jetstream
from swarm.subjects import api
from swarm.transport.lane import LaneOptions
from swarm.transport.lane.credit import Credit
from swarm.transport.lane.tuning import STOPS

pytestmark = pytest.mark.integration
# Where `ack_wait` passes, or a lane is tended: short enough to wait for.
soon_again = pytest.mark.parametrize(
    "lane_options", [LaneOptions(depth=128, ack_wait=0.2)], ids=[""]
)


async def test_a_lane_delivers_in_order_and_an_ack_brings_the_next(bench: Bench) -> None:
    lane, got = await bench.lane(credit=1)
    sender = await bench.sender()
    for number in range(10):
        sender.send(str(number))
    for number in range(10):
        await eventually(lambda count=number + 1: len(got) == count)
        await lane.link.flush()
        assert len(got) == number + 1  # credit 1: nothing more before the ack
        assert got[-1].times_delivered == 1
        assert not got[-1].ended
        assert got[-1].ack()
        assert got[-1].ended
        assert not got[-1].ack()
    assert bodies(got) == [b"%d" % n for n in range(10)]
    assert [d.sequence for d in got] == list(range(1, 11))
    await lane.link.flush()
    assert await sender.emptied()
    assert lane.redelivered == 0


async def test_a_lane_never_holds_more_than_its_credit(bench: Bench) -> None:
    lane, got = await bench.lane(credit=3)
    sender = await bench.sender()
    for number in range(12):
        sender.send(str(number))
    await eventually(lambda: sender.acked(12) and len(got) == 3)
    await lane.link.flush()
    assert (len(got), lane.in_hand) == (3, 3)
    got[1].ack()
    await eventually(lambda: len(got) == 4)


async def test_all_waiting_messages_can_be_asked_for_whatever_the_credit(bench: Bench) -> None:
    sender = await bench.sender()
    first, _ = await bench.lane(credit=1)
    first.pause()  # its parked pull takes one
    for number in range(9):
        sender.send(str(number))
    await eventually(lambda: sender.acked(9))
    lane, got = await bench.lane(credit=2)
    await eventually(lambda: len(got) == 2)
    assert lane.pending == 6
    lane.ask_for_all()
    assert lane.pending == 0
    lane.ask_for_all()
    await eventually(lambda: len(got) == 8)
    assert (lane.pending, lane.in_hand, lane.asked) == (0, 8, 0)
    for delivery in got[:6]:
        delivery.ack()
    assert lane.asked == 0, "as many as the credit allows are in hand"
    got[6].ack()
    assert lane.asked == 1
    lane.pending = 5
    lane.pause()
    lane.ask_for_all()
    assert lane.asked == 1


@soon_again
async def test_a_message_that_comes_again_while_it_is_in_hand_is_given_to_the_stage_once(
    bench: Bench,
) -> None:
    lane, got = await bench.lane(credit=2)
    sender = await bench.sender()
    sender.send("x")
    await eventually(lambda: len(got) == 1)
    for _ in range(STOPS + 1):  # more than a stop now and then
        times = got[0].times_delivered
        time.sleep(bench.options.ack_wait * 1.5)  # noqa: ASYNC251 - the loop stands still
        await eventually(lambda times=times: got[0].times_delivered > times)  # type: ignore[misc]
    await eventually(lambda: lane.overdue > 0)
    assert len(got) == 1
    got[0].ack()
    assert await sender.emptied()  # the ack was for the newest delivery
    await eventually(lambda: lane.ack_wait >= 2 * bench.options.ack_wait)
    info = await jetstream.call(lane.link, api("CONSUMER.INFO", STREAM, CONSUMER))
    assert info["config"]["ack_wait"] == pytest.approx(1e9 * lane.ack_wait)


async def test_a_nak_hands_the_message_out_again_at_once(bench: Bench) -> None:
    lane, got = await bench.lane(credit=1)
    sender = await bench.sender()
    sender.send("x")
    await eventually(lambda: len(got) == 1)
    got[0].nak()
    await eventually(lambda: len(got) == 2)
    assert got[1].times_delivered == 2
    assert (got[1].sequence, bytes(got[1].data)) == (got[0].sequence, b"x")
    assert lane.redelivered == 1


async def test_a_delayed_nak_waits_as_long_as_it_says(bench: Bench) -> None:
    _, got = await bench.lane(credit=1)
    sender = await bench.sender()
    sender.send("x")
    await eventually(lambda: len(got) == 1)
    started = time.monotonic()
    got[0].nak(0.1)
    await eventually(lambda: len(got) == 2)
    assert time.monotonic() - started >= 0.09


async def test_a_terminated_message_never_comes_back(bench: Bench) -> None:
    lane, got = await bench.lane(credit=1)
    sender = await bench.sender()
    sender.send("poison")
    await eventually(lambda: len(got) == 1)
    got[0].term()
    sender.send("next")
    await eventually(lambda: len(got) == 2)
    got[1].ack()
    assert await sender.emptied(), "neither can come again"
    await lane.link.flush()
    assert bodies(got) == [b"poison", b"next"]


async def test_settling_twice_does_nothing(bench: Bench) -> None:
    lane, got = await bench.lane(credit=2)
    sender = await bench.sender()
    sender.send("x")
    await eventually(lambda: len(got) == 1)
    got[0].ack()
    got[0].nak()
    got[0].term()
    got[0].ack()
    assert await sender.emptied()
    await lane.link.flush()
    assert len(got) == 1
    assert lane.asked <= lane.credit
    for name in ("a", "b", "c"):
        sender.send(name)
    await eventually(lambda: len(got) == 3 and sender.acked(4))
    await lane.link.flush()
    assert lane.in_hand == 2  # no ack was counted as two credits


@soon_again
async def test_messages_of_a_vanished_node_are_delivered_after_ack_wait(bench: Bench) -> None:
    lane, got = await bench.lane()
    sender = await bench.sender()
    sender.send("x")
    await eventually(lambda: len(got) == 1)
    standby, other = await bench.lane(priority=STANDBY)
    await bench.links.crash(lane.link)
    await eventually(lambda: len(other) == 1)
    assert other[0].times_delivered >= 2
    assert got[0].ack() is False  # of the old connection: says nothing
    assert await sender.stored() == 1
    other[0].ack()
    await standby.link.flush()
    assert await sender.emptied()


async def test_a_fallback_gets_nothing_while_a_primary_has_a_parked_pull(bench: Bench) -> None:
    _, backup = await bench.lane(priority=FALLBACK)
    _, spare = await bench.lane(priority=STANDBY)
    _, main = await bench.lane(priority=PRIMARY)
    sender = await bench.sender()
    for number in range(100):
        sender.send(str(number))
        await eventually(lambda count=number + 1: len(main) + len(spare) + len(backup) == count)
        main[-1].ack()
    assert (len(main), len(spare), len(backup)) == (100, 0, 0)


async def test_the_next_in_line_takes_over_the_queue_when_the_primary_is_gone(
    bench: Bench,
) -> None:
    primary, main = await bench.lane(priority=PRIMARY)
    _, backup = await bench.lane(priority=FALLBACK)
    sender = await bench.sender()
    sender.send("before")
    await eventually(lambda: len(main) == 1)
    main[0].ack()
    await primary.link.flush()
    await bench.links.crash(primary.link)
    await sender.sees_the_end_of(primary)
    sender.send("after")
    await eventually(lambda: len(backup) == 1)
    assert bodies(backup) == [b"after"]
    # Its connection is gone and its parked pulls with it: nobody waits for an ack_wait, after which
    # the message would be delivered for the second time.
    assert backup[0].times_delivered == 1


async def test_draining_gives_nothing_up_and_takes_nothing_more(bench: Bench) -> None:
    lane, got = await bench.lane(credit=4)
    sender = await bench.sender()
    for number in range(8):
        sender.send(str(number))
    await eventually(lambda: len(got) == 4)
    _, other = await bench.lane(credit=8)
    await lane.drain()
    await eventually(lambda: len(other) == 4)
    got[0].ack()  # started before: finished here
    for delivery in got[1:]:
        delivery.nak()  # not started: handed back
    await eventually(lambda: len(other) == 7)
    assert sorted(bodies(other)) == [b"%d" % n for n in range(1, 8)]
    for delivery in other:
        delivery.ack()
    sender.send("later")
    await eventually(lambda: len(other) == 8)
    assert len(got) == 4


async def test_a_paused_lane_asks_for_nothing_until_it_resumes(bench: Bench) -> None:
    lane, got = await bench.lane(credit=1)
    sender = await bench.sender()
    sender.send("1")
    await eventually(lambda: len(got) == 1)
    lane.pause()
    sender.send("2")
    got[0].ack()
    assert await sender.comes_down_to(1)
    await lane.link.flush()
    assert len(got) == 1
    lane.resume()
    await eventually(lambda: len(got) == 2)


async def test_ack_wait_can_be_changed_while_the_lane_runs(bench: Bench) -> None:
    lane, _ = await bench.lane()
    other, _ = await bench.lane()
    await lane.set_ack_wait(0.35)
    assert lane.ack_wait == pytest.approx(0.35)
    await other.refresh()
    assert other.ack_wait == pytest.approx(0.35)
    info = await jetstream.call(lane.link, api("CONSUMER.INFO", STREAM, CONSUMER))
    assert info["config"]["ack_wait"] == 350_000_000
    # Whoever comes later takes over what the lane has, whatever it was configured with.
    third, _ = await bench.lane()
    assert third.ack_wait == pytest.approx(0.35)


async def test_the_age_of_a_message_is_measured_by_the_servers_clock(bench: Bench) -> None:
    sender, clock = await bench.sender(), ServerClock()
    _, got = await bench.lane(credit=1, clock=clock)
    began = time.monotonic()
    for name in ("1", "2"):
        sender.send(name)
    await eventually(lambda: len(got) == 1 and sender.acked(2))
    both_stored = time.monotonic()
    await asyncio.sleep(0.1)  # the time that passes is what is measured
    got[0].ack()
    await eventually(lambda: len(got) == 2)
    for delivery in got:
        came, error = delivery.received / 1e9, clock.round_trip / 2 + 0.001
        assert came - both_stored - error <= delivery.age <= came - began + error


@pytest.fixture
def lane_options() -> LaneOptions:
    """What comes within a test was handed back, or never held: `ack_wait` is longer."""
    return LaneOptions(depth=128, ack_wait=60.0)


@soon_again
async def test_credit_grows_while_several_messages_come_at_once(bench: Bench) -> None:
    lane, got = await bench.lane(credit=4, max_credit=32)
    sender = await bench.sender()
    sent = 0
    async with asyncio.timeout(GENEROUS):
        while lane.credit == 4:
            for _ in range(16):
                sender.send(str(sent := sent + 1))
            while len(got) < lane.credit:  # noqa: ASYNC110 - as fast as they come
                await asyncio.sleep(0)
            while got:
                got.pop().ack()
    assert 4 < lane.credit <= 32


async def test_a_message_whose_result_another_node_has_takes_no_credit(bench: Bench) -> None:
    lane, got = await bench.lane(credit=2)
    sender = await bench.sender()
    for number in range(12):
        sender.send(str(number))
    done = 0
    while done < 12:
        await eventually(lambda done=done: len(got) > done)  # type: ignore[misc]
        got[done].release_credit()
        got[done].release_credit()  # once is enough
        done += 1
    assert lane.in_hand == 12
    for delivery in got:
        assert delivery.ack()
    for number in range(12, 24):  # and none is counted twice
        sender.send(str(number))
    await eventually(lambda: lane.in_hand == 2 and sender.acked(24))
    await lane.link.flush()
    assert (len(got), lane.in_hand) == (14, 2)


@pytest.mark.parametrize("end", ["unheld", "nak", "term", "lost"])
async def test_a_message_that_is_at_work_again_takes_credit_again(bench: Bench, end: str) -> None:
    lane, got = await bench.lane(credit=2)
    sender = await bench.sender()
    for number in range(20):
        sender.send(str(number))
    await eventually(lambda: len(got) == 2)
    worked = list(got)
    for delivery in worked:
        delivery.release_credit()
    await eventually(lambda: len(got) == 4)
    if end == "unheld":
        for delivery in worked:
            delivery.take_credit()
            delivery.take_credit()
        got[3].ack()
        assert await sender.comes_down_to(19)
        await lane.link.flush()
        assert (len(got), lane.in_hand) == (4, 3), "nothing more before there is room"
        for delivery in worked:
            assert delivery.ack()
    elif end == "lost":
        left: list[tuple[int, int]] = []
        lane.link.on_down.append(lambda: left.append((lane.in_hand, lane.asked)))
        cut(lane.link)
        await eventually(lambda: left == [(0, 0)], what="that nothing is left of the connection")
        await eventually(lambda: lane.in_hand == 2, what="the credit's worth of messages")
    else:
        for delivery in worked:
            getattr(delivery, end)()
    await eventually(lambda: (lane.in_hand, lane.asked) == (2, 0))
    await lane.link.flush()
    assert (lane.in_hand, lane.asked) == (2, 0)


async def test_credit_is_told_of_messages_at_work_and_waiting_and_not_of_held_ones(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hung node is handed one message as often as it has asked for it."""
    told: list[int] = []
    monkeypatch.setattr(Credit, "arrived", lambda credit, at_once: told.append(at_once))
    lane, got = await bench.lane(credit=4)
    sender = await bench.sender()
    for number in range(20):
        sender.send(str(number))
        await eventually(lambda number=number: len(got) == number + 1)
        got[-1].release_credit()
    assert (told, lane.in_hand) == ([1] * 20, 20)
    told.clear()
    for number in range(20, 30):
        sender.send(str(number))
    await eventually(lambda: len(told) == 4 and sender.acked(30))
    assert sum(told) >= 1 + 2 + 3 + 4, "with those at work before, and those that wait behind"
