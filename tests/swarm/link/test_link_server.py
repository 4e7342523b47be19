"""The link against a real server: messages, requests, limits."""

from __future__ import annotations

import asyncio

import pytest
from real_server import Inbox, Links, hang, resume
from support.waiting import GENEROUS, eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.errors import MessageTooLarge, NoResponders, NotConnected, ResourceExhausted, Status
from swarm.link import Link, LinkMessage, LinkOptions

pytestmark = pytest.mark.integration


async def test_a_subscriber_gets_what_is_published_in_order(
    server: EmbeddedServer, links: Links
) -> None:
    sender, receiver = await links.connect(server.url), await links.connect(server.url)
    inbox = Inbox()
    receiver.subscribe("a.*", inbox)
    await receiver.flush()
    for number in range(500):
        sender.publish("a.b", b"%d" % number)
    await eventually(lambda: len(inbox) == 500)
    assert inbox.bodies == [b"%d" % number for number in range(500)]
    assert inbox[0].subject == "a.b"
    assert inbox[0].reply == ""
    assert inbox[0].headers is None


async def test_parts_headers_and_the_reply_subject_arrive_whole(link: Link) -> None:
    inbox = Inbox()
    link.subscribe("a", inbox)
    head = b"NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n"
    link.publish("a", [b"one", memoryview(b"two"), b""], "back", head)
    await eventually(lambda: len(inbox) == 1)
    assert (inbox[0].reply, inbox[0].headers, inbox.bodies) == ("back", head, [b"onetwo"])
    assert inbox[0].status == b""


async def test_a_flush_is_cancelled_even_where_its_answer_comes_at_that_moment(link: Link) -> None:
    ended = asyncio.Event()

    async def flush_for_ever() -> None:
        try:
            while True:
                await link.flush()
        finally:
            ended.set()

    for _ in range(20):
        ended.clear()
        before = link.sync()  # answered together with the flush that follows
        task = asyncio.create_task(flush_for_ever())
        before.add_done_callback(lambda _, task=task: task.cancel())  # type: ignore[misc]
        await before
        async with asyncio.timeout(30):
            await ended.wait()
        assert task.cancelled() or task.cancelling()


async def test_a_queue_group_gives_each_message_to_one_member(link: Link) -> None:
    first, second = Inbox(), Inbox()
    link.subscribe("work", first, queue="group")
    link.subscribe("work", second, queue="group")
    for _ in range(100):
        link.publish("work", b"")
    await link.flush()
    await eventually(lambda: len(first) + len(second) >= 100)
    assert len(first) + len(second) == 100
    assert first
    assert second


async def test_a_request_gets_its_own_reply_among_concurrent_ones(
    server: EmbeddedServer, links: Links
) -> None:
    server_side, client = await links.connect(server.url), await links.connect(server.url)
    server_side.subscribe("echo", lambda m: server_side.publish(m.reply, bytes(m.data)))
    await server_side.flush()
    answers = await asyncio.gather(*(client.request("echo", b"%d" % n) for n in range(200)))
    assert [bytes(a.data) for a in answers] == [b"%d" % n for n in range(200)]
    assert client.open_replies == 0  # no reply subject is left behind


async def test_a_request_to_nobody_fails_at_once(link: Link) -> None:
    with pytest.raises(NoResponders, match="nobody listens on nowhere"):
        await link.request("nowhere", b"", timeout=GENEROUS)
    assert link.open_replies == 0


async def test_a_request_that_nobody_answers_ends_by_its_timeout(link: Link) -> None:
    link.subscribe("silent", Inbox())
    with pytest.raises(TimeoutError):
        await link.request("silent", b"", timeout=0.05)
    assert link.open_replies == 0


async def test_a_payload_of_8_mb_arrives_intact(link: Link) -> None:
    inbox = Inbox()
    link.subscribe("big", inbox)
    block = bytes(range(256)) * 4096
    link.publish("big", [block] * 8)
    link.publish("big", b"after")
    await eventually(lambda: len(inbox) == 2)
    assert inbox.bodies == [block * 8, b"after"]


@pytest.mark.parametrize("headers", [b"", b"NATS/1.0\r\nA: b\r\n\r\n"])
async def test_a_message_above_the_servers_limit_is_refused_here_and_the_link_survives(
    links: Links, headers: bytes
) -> None:
    small = await links.server(max_payload=100_000)
    link = await links.connect(small.url)
    assert link.max_payload == 100_000
    inbox = Inbox()
    link.subscribe("a", inbox)
    fits = 100_000 - len(headers)
    with pytest.raises(MessageTooLarge, match="max_payload: 100001") as refused:
        link.publish("a", b"x" * (fits + 1), headers=headers)
    assert refused.value.status is Status.INVALID_ARGUMENT, "to send it again is of no use"
    link.publish("a", b"x" * fits, headers=headers)
    await eventually(lambda: len(inbox) == 1)
    assert link.reconnects == 0


async def test_a_callback_that_raises_is_counted_and_ends_nothing(link: Link) -> None:
    inbox = Inbox()

    def fail(message: LinkMessage) -> None:
        raise RuntimeError("on purpose")

    link.subscribe("bad", fail)
    link.subscribe("good", inbox)
    for _ in range(3):
        link.publish("bad", b"")
        link.publish("good", b"")
    await eventually(lambda: len(inbox) == 3)
    assert link.callback_errors == 3
    assert link.connected
    assert link.reconnects == 0


async def test_nothing_is_delivered_after_unsubscribing(link: Link) -> None:
    inbox = Inbox()
    sid = link.subscribe("a", inbox)
    link.publish("a", b"1")
    await eventually(lambda: len(inbox) == 1)
    link.unsubscribe(sid)
    link.publish("a", b"2")
    await link.flush()
    assert inbox.bodies == [b"1"]


async def test_draining_a_subscription_delivers_what_was_sent_before(
    server: EmbeddedServer, links: Links
) -> None:
    sender, receiver = await links.connect(server.url), await links.connect(server.url)
    inbox = Inbox()
    sid = receiver.subscribe("a", inbox)
    await receiver.flush()
    for _ in range(200):
        sender.publish("a", b"x" * 1000)
    await sender.flush()
    await receiver.unsubscribe_and_drain(sid)
    assert len(inbox) == 200
    sender.publish("a", b"late")
    await sender.flush()
    await receiver.flush()
    assert len(inbox) == 200


async def test_flush_waits_for_its_own_pong_and_not_for_an_earlier_one(link: Link) -> None:
    for number in range(100):
        inbox = Inbox()
        sid = link.subscribe(f"f.{number}", inbox)
        earlier = [link.sync() for _ in range(3)]
        link.publish(f"f.{number}", b"")
        await link.flush()
        assert all(each.done() for each in earlier)
        assert len(inbox) == 1  # the echo comes before the PONG of the PING after it
        link.unsubscribe(sid)


async def test_publishing_without_a_connection_raises_at_once() -> None:
    link = Link(LinkOptions())
    with pytest.raises(NotConnected):
        link.publish("a", b"")
    with pytest.raises(NotConnected):
        await link.flush()
    with pytest.raises(NotConnected):
        await link.request("a")


@pytest.mark.parametrize("size", [200, 100_000], ids=["joined", "in pieces"])
@pytest.mark.parametrize("burst", [False, True], ids=["alone", "in a burst"])
async def test_unsent_bytes_are_bounded(
    own_server: EmbeddedServer, links: Links, size: int, burst: bool
) -> None:
    link = await links.connect(own_server.url, max_pending=1 << 20)
    assert link.gather.transport is not None
    await hang(own_server)  # else it may read as fast as the link writes
    if burst:
        link.gather.together()

    def flood() -> None:
        for _ in range(20 * (1 << 20) // size):
            link.publish("a", b"x" * size)

    try:
        with pytest.raises(ResourceExhausted, match="waiting to be sent"):
            flood()
        kept = link.gather.transport.get_write_buffer_size()
        with pytest.raises(ResourceExhausted, match="waiting to be sent"):
            flood()
        assert link.gather.transport.get_write_buffer_size() == kept
    finally:
        resume(own_server)
    await link.flush(GENEROUS)
    link.publish("a", b"x" * size)  # room again
    assert link.reconnects == 0


async def test_closing_sends_what_was_published_before(
    server: EmbeddedServer, links: Links
) -> None:
    sender, receiver = await links.connect(server.url), await links.connect(server.url)
    inbox = Inbox()
    receiver.subscribe("a", inbox)
    await receiver.flush()
    for _ in range(50):
        sender.publish("a", b"x" * 50_000)
    await sender.close()
    await eventually(lambda: len(inbox) == 50)
    with pytest.raises(NotConnected):
        sender.publish("a", b"")
    await eventually(lambda: not links.running(sender))
