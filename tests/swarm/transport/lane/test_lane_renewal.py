"""Lanes whose server restarts, whose stream or consumer vanishes."""

from __future__ import annotations

import asyncio

import pytest
from lane_tools import CONSUMER, STREAM, Bench, bodies
from real_server import cut
from support.waiting import GENEROUS, eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.fleet.priorities import STANDBY
from swarm.link import jetstream
from swarm.subjects import api

pytestmark = pytest.mark.integration


async def test_after_a_restart_that_lost_the_streams_the_lane_makes_them_anew(
    own_server: EmbeddedServer, bench: Bench
) -> None:
    lane, got = await bench.lane()
    sender = await bench.sender()
    sender.send("before")
    await eventually(lambda: len(got) == 1)
    assert bench.provisioned == 1
    await own_server.kill()
    await eventually(lambda: not lane.link.connected and not sender.link.connected)
    assert not lane.in_hand
    await own_server.start()
    await sender.link.ready(5.0)
    await eventually(lambda: bench.provisioned == 2)
    await eventually(lambda: lane.asked > 0)
    sender.send("after")
    await eventually(lambda: len(got) == 2)
    assert bytes(got[1].data) == b"after"
    # Both are number 1 of their stream: an ack of the first must not remove the second.
    assert got[0].sequence == got[1].sequence
    for settle in (got[0].ack, got[0].nak, got[0].term):
        settle()
    await lane.link.flush()
    assert await sender.stored() == 1
    assert not got[1].ended
    assert len(got) == 2
    got[1].ack()
    await lane.link.flush()
    assert await sender.emptied()


async def test_a_lane_outlives_a_connection_that_is_cut_and_loses_nothing(bench: Bench) -> None:
    lane, got = await bench.lane(credit=2)
    sender = await bench.sender()
    for number in range(6):
        sender.send(str(number))
    await eventually(lambda: len(got) == 2)
    held = list(got)
    cut(lane.link)
    await eventually(lambda: lane.link.reconnects == 1 and lane.link.connected)
    for delivery in held:
        delivery.ack()  # came over the old connection: by now the lane's again

    def ack_all() -> None:
        for delivery in lane.messages():
            delivery.ack()

    async with asyncio.timeout(GENEROUS):
        while await sender.stored():
            ack_all()
    assert set(bodies(got)) == {b"%d" % n for n in range(6)}


@pytest.mark.parametrize("idle", [True, False], ids=["idle", "while-it-holds-a-message"])
async def test_a_deleted_consumer_is_made_anew(bench: Bench, idle: bool) -> None:
    lane, got = await bench.lane(credit=1)
    sender = await bench.sender()
    if not idle:
        sender.send("held")
        await eventually(lambda: len(got) == 1)
    await jetstream.delete_consumer(sender.link, STREAM, CONSUMER)
    await jetstream.delete_consumer(sender.link, STREAM, CONSUMER)  # gone is as good
    sender.send("next")

    def served() -> bool:
        # What was held is delivered again: nobody was there to take its ack.
        for delivery in got:
            delivery.ack()
        return b"next" in bodies(got)

    await eventually(served)
    info = await jetstream.call(lane.link, api("CONSUMER.INFO", STREAM, CONSUMER))
    assert info["config"]["priority_policy"] == "prioritized"


async def test_a_deleted_stream_is_made_anew(bench: Bench) -> None:
    lane, got = await bench.lane()
    sender = await bench.sender()
    await jetstream.call(sender.link, api("STREAM.DELETE", STREAM))
    await eventually(lambda: bench.provisioned == 2)
    await eventually(lambda: lane.asked > 0)
    sender.send("after")
    await eventually(lambda: bodies(got) == [b"after"])


async def test_a_lane_waits_for_a_server_whose_jetstream_fails_and_then_serves(
    server: EmbeddedServer, bench: Bench
) -> None:
    lane, got = await bench.lane()
    bench.provision_fails = 2
    sender = await bench.sender()
    await jetstream.call(sender.link, api("STREAM.DELETE", STREAM))
    await eventually(lambda: bench.provisioned == 2)
    await eventually(lambda: lane.asked > 0)
    sender.send("x")
    await eventually(lambda: bodies(got) == [b"x"])


async def test_two_lanes_share_the_work_and_every_message_is_done_once(bench: Bench) -> None:
    _, first = await bench.lane(credit=2, ack=True)
    _, second = await bench.lane(credit=2, ack=True)
    _, spare = await bench.lane(credit=2, priority=STANDBY)
    sender = await bench.sender()
    for number in range(200):
        while True:
            sender.send(str(number))
            await eventually(lambda name=str(number): bool(sender.outcomes[name]))
            error, _ = sender.outcomes[str(number)].pop()
            if error is None:
                break
    await eventually(lambda: len(first) + len(second) == 200)
    assert not spare
    assert sorted(map(int, bodies(first + second))) == list(range(200))
    assert first
    assert second
