"""Publishing into a lane: the outcome is known, once, in every case."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from lane_tools import STREAM, SUBJECT, Bench, Sender, bodies
from real_server import cut, hang, resume
from support.waiting import eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import (
    ApiError,
    DecodeError,
    MessageTooLarge,
    NoResponders,
    NotConnected,
    ResourceExhausted,
    SwarmError,
)
from swarm.link import jetstream
from swarm.subjects import api
from swarm.transport.lane import NotStored, Publisher, publisher
from swarm.transport.lane.publisher import lane_error

pytestmark = pytest.mark.integration


async def test_what_is_stored_is_reported_with_its_number(bench: Bench) -> None:
    await bench.lane(credit=1)
    sender = await bench.sender()
    for number in range(10):
        sender.send(str(number))
    await eventually(lambda: sender.acked(10))
    assert list(sender.outcomes.values()) == [[(None, n)] for n in range(1, 11)]
    assert sender.link.open_replies == 0


async def test_a_full_lane_refuses_at_once_and_takes_more_when_there_is_room(
    bench: Bench,
) -> None:
    lane, got = await bench.lane(credit=1)
    sender = await bench.sender()
    depth = bench.options.depth
    for number in range(depth + 5):
        sender.send(str(number))
    await eventually(lambda: sender.acked(depth + 5))
    errors = [calls[0][0] for calls in sender.outcomes.values()]
    assert errors[:depth] == [None] * depth
    assert all(isinstance(error, ResourceExhausted) for error in errors[depth:])
    assert "lane is full" in str(errors[-1])
    got[0].ack()
    await lane.link.flush()
    assert await sender.comes_down_to(depth - 1), "the server removes it behind the ack"
    sender.send("again")
    await eventually(lambda: bool(sender.outcomes["again"]))
    assert sender.outcomes["again"][0][0] is None


async def test_a_message_id_is_stored_once_however_often_it_is_sent(bench: Bench) -> None:
    lane, got = await bench.lane()
    sender = await bench.sender()
    for _ in range(5):
        sender.send("same")
    await eventually(lambda: sender.acked(5))
    assert sender.outcomes["same"] == [(None, 1)] * 5
    sender.send("other")
    await eventually(lambda: len(got) == 2)
    assert bodies(got) == [b"same", b"other"]
    for delivery in got:
        delivery.ack()
    await lane.link.flush()
    sender.send("same")  # done already: remembered all the same
    await eventually(lambda: len(sender.outcomes["same"]) == 6)
    assert await sender.emptied()


async def test_a_lane_without_a_stream_is_reported_at_once(bench: Bench) -> None:
    sender = await bench.sender()
    sender.send("x")
    await eventually(lambda: sender.acked(1))
    ((error, sequence),) = sender.outcomes["x"]
    assert isinstance(error, NoResponders)
    assert sequence == 0


async def test_a_lost_connection_fails_what_waits_exactly_once(
    own_server: EmbeddedServer, bench: Bench
) -> None:
    await bench.lane()
    sender = await bench.sender()
    await hang(own_server)
    for number in range(5):
        sender.send(str(number))
    os.kill(own_server.pid, signal.SIGKILL)
    await eventually(lambda: sender.acked(5))
    with pytest.raises(NotConnected):
        sender.send("late")
    await own_server.kill()
    await own_server.start()
    await sender.link.ready(5.0)
    await sender.link.flush()
    for number in range(5):
        ((error, _),) = sender.outcomes[str(number)]
        assert isinstance(error, NotConnected)
    assert sender.outcomes["late"] == []
    assert sender.link.open_replies == 0


async def test_a_callback_that_raises_does_not_cost_another_its_outcome(
    own_server: EmbeddedServer, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "ACK_TIMEOUT", 0.1)
    await bench.lane()
    sender = await bench.sender()
    calls = 0

    def fail(error: SwarmError | None, sequence: int) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("on purpose")

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)
    await hang(own_server)
    try:
        for number in range(3):
            sender.publisher.publish(SUBJECT, [b""], f"bad-{number}", fail)
            sender.send(f"good-{number}")
        await eventually(lambda: sender.acked(3) and calls == 3)
        sender.send("later")  # timeouts still work after one of them raised
        await eventually(lambda: sender.acked(4))
        for number in range(3):
            sender.publisher.publish(SUBJECT, [b""], f"lost-{number}", fail)
            sender.send(f"lost-{number}")
        cut(sender.link)
        await eventually(lambda: sender.acked(7) and calls == 6)
    finally:
        resume(own_server)


async def test_closing_a_publisher_reports_what_was_not_acknowledged(
    own_server: EmbeddedServer, bench: Bench
) -> None:
    await bench.lane()
    link = await bench.links.connect(bench.url)
    before = list(link.on_down)
    sender = Sender(link)
    await hang(own_server)
    try:
        sender.send("x")
        sender.publisher.close()
        ((error, _),) = sender.outcomes["x"]
        assert isinstance(error, NotConnected)
        sender.publisher.close()
        assert len(sender.outcomes["x"]) == 1
    finally:
        resume(own_server)
    assert sender.link.open_replies == 0
    assert link.on_down == before, "nothing of it is called any more"


async def test_a_message_above_max_payload_is_refused_here_and_leaves_nothing_behind(
    server: EmbeddedServer, bench: Bench
) -> None:
    sender = await bench.sender()
    with pytest.raises(MessageTooLarge):
        sender.send("x", b"x" * (server.max_payload + 1))
    assert sender.outcomes["x"] == []
    assert sender.link.open_replies == 0


async def test_a_forged_acknowledgement_is_an_error_and_still_comes_once(bench: Bench) -> None:
    link = await bench.links.connect(bench.url)
    forger = await bench.links.connect(bench.url)
    bodies = [b"", b"{", b"[]", b"7", b'{"error": 7}', b'{"error": []}', b'{"seq": "x"}', b"null"]
    answers = iter(bodies)
    forger.subscribe("forged", lambda m: forger.publish(m.reply, next(answers)))
    await forger.flush()
    sending = Publisher(link)
    outcomes: list[SwarmError | None] = []
    for number in range(len(bodies)):
        sending.publish("forged", [b""], str(number), lambda error, _: outcomes.append(error))
        await eventually(lambda count=number + 1: len(outcomes) == count)
    assert all(isinstance(error, SwarmError) for error in outcomes), outcomes
    assert link.callback_errors == 0
    sending.close()


@pytest.mark.parametrize("code", [10002, 10023, 10028, 10047, 10077])
def test_want_of_room_is_a_full_lane_whichever_bound_is_met(code: int) -> None:
    error = lane_error(ApiError(503, code, "no room"))
    assert isinstance(error, ResourceExhausted)
    assert "no room" in str(error)


@pytest.mark.parametrize("code", [10039, 10109, 10076])
def test_other_refusals_of_a_lane_are_no_full_lane(code: int) -> None:
    assert isinstance(lane_error(ApiError(503, code, "sealed")), NotStored)


async def test_api_refusals_carry_the_servers_own_number(bench: Bench) -> None:
    link = await bench.links.connect(bench.url)
    with pytest.raises(ApiError) as refusal:
        await jetstream.call(link, api("STREAM.INFO", STREAM))
    assert (refusal.value.code, refusal.value.err_code) == (404, jetstream.STREAM_NOT_FOUND)
    with pytest.raises(DecodeError):
        jetstream.parse(b"not json")
