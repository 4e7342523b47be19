"""The parts of a link that need no socket: who gets a message, and which PONG is whose."""

from __future__ import annotations

import pytest
from real_server import Inbox

from swarm.errors import NotConnected
from swarm.link import LinkMessage
from swarm.link.awaited import MOST_UNANSWERED, Pings
from swarm.link.revisions import MOST_KEYS, Revisions
from swarm.link.subscriptions import Replies, Subscriptions


def reply(subject: str) -> LinkMessage:
    return LinkMessage(subject, "", None, b"")


def test_subscriptions_have_numbers_of_their_own_and_are_told_to_the_server_in_order() -> None:
    table = Subscriptions()
    first, second, third = Inbox(), Inbox(), Inbox()
    numbers = [table.add("a", "", first), table.add("b", "g", second), table.add("c", "", third)]
    assert len(set(numbers)) == 3
    assert table.remove(numbers[0])
    assert not table.remove(numbers[0])
    assert table.callbacks == {numbers[1]: second, numbers[2]: third}
    assert table.lines() == table.line(numbers[1]) + table.line(numbers[2])
    assert table.line(numbers[1]).split() == [b"SUB", b"b", b"g", b"%d" % numbers[1]]
    assert table.add("d", "", first) not in numbers, "what a server still sends for one is dropped"


def test_who_was_shown_where_replies_are_expected_can_guess_no_other_such_subject() -> None:
    replies = Replies("_INBOX.x", "_INBOX.y.server")
    shown = [replies.expect(Inbox()).rpartition(".")[2] for _ in range(1000)]
    assert {len(each) for each in shown} == {16}
    assert len({each[:8] for each in shown} | {each[8:] for each in shown}) == 2000


def test_a_reply_reaches_only_the_callback_that_expects_it_until_it_is_forgotten() -> None:
    replies = Replies("_INBOX.x", "_INBOX.y.server")
    one, other = Inbox(), Inbox()
    subjects = [replies.expect(one), replies.expect(other)]
    assert all(subject.startswith("_INBOX.x.") for subject in subjects)
    replies.deliver(reply(subjects[0]))
    replies.deliver(reply(subjects[0]))
    replies.deliver(reply("_INBOX.x.nobody"))
    assert (len(one), len(other), len(replies)) == (2, 0, 2)
    replies.forget(subjects[0])
    replies.forget(subjects[0])
    replies.deliver(reply(subjects[0]))
    assert (len(one), len(replies)) == (2, 1)
    assert subjects[1] in replies
    assert subjects[0] not in replies


async def test_a_keep_alive_pong_does_not_complete_a_flush() -> None:
    pings = Pings()
    pings.keep_alive()
    flushed = pings.expect()
    pings.keep_alive()
    pings.answered()
    assert not flushed.done()
    pings.answered()
    assert flushed.done()
    pings.answered()
    pings.answered()  # more than were asked for


async def test_a_caller_that_no_longer_waits_keeps_its_pongs_place() -> None:
    pings = Pings()
    first, second = pings.expect(), pings.expect()
    first.cancel()
    pings.answered()
    assert not second.done()
    pings.answered()
    assert second.done()


async def test_a_pong_behind_a_backlog_is_waited_for() -> None:
    pings = Pings()
    for _ in range(MOST_UNANSWERED + 1):
        pings.keep_alive()
    assert pings.is_hung(1.9)
    assert not pings.is_hung(2.0)


async def test_a_server_counts_as_hung_when_it_leaves_keep_alives_unanswered() -> None:
    pings = Pings()
    for _ in range(MOST_UNANSWERED - 1):
        pings.keep_alive()
    pings.expect().cancel()  # a flush says nothing of how long the server has been silent
    assert not pings.is_hung()
    pings.answered()
    for _ in range(MOST_UNANSWERED):
        assert not pings.is_hung()
        pings.keep_alive()
    assert pings.is_hung()
    pings.answered()
    assert not pings.is_hung()


async def test_all_who_wait_for_a_pong_learn_of_the_loss_once() -> None:
    pings = Pings()
    waiting = [pings.expect(), pings.expect()]
    pings.answered()
    pings.fail(NotConnected("lost"))
    pings.fail(NotConnected("again"))
    assert waiting[0].exception() is None
    with pytest.raises(NotConnected, match="lost"):
        await waiting[1]


def test_a_read_is_behind_what_was_heard_of_that_key_and_of_no_other() -> None:
    revisions = Revisions()
    assert not revisions.is_behind("a", 0)
    revisions.heard("a", 7)
    revisions.heard("a", 5)
    assert revisions.is_behind("a", 6)
    assert not revisions.is_behind("a", 7)
    assert not revisions.is_behind("b", 0)


def test_what_was_wrong_is_forgotten_and_the_memory_is_bounded() -> None:
    revisions = Revisions()
    revisions.heard("a", 7)
    revisions.forget("a")
    assert not revisions.is_behind("a", 0)
    for number in range(MOST_KEYS + 1):
        revisions.heard(str(number), 1)
    assert not revisions.is_behind("0", 0)
    assert revisions.is_behind(str(MOST_KEYS), 0)
