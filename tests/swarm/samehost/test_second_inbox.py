"""A process with two connections: its socket takes the messages to both inboxes."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from host_processes import LIMIT, Make, Process, directory

from swarm.link import Link, LinkMessage, LinkOptions
from swarm.subjects import second_inbox

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="no Unix sockets here")


def second_of(process: Process) -> Link:
    """A second connection of the process, for which its socket answers."""
    link = Link(LinkOptions(inbox=second_inbox(process.inbox)))
    process.answer_for(link)
    return link


async def test_an_answer_to_the_second_inbox_reaches_who_expects_it_there(make: Make) -> None:
    a, b = make(), make()
    second = second_of(b)
    assert a.open()
    assert b.open()
    came: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

    def to(name: str, link: Link) -> str:
        def heard(message: LinkMessage) -> None:
            came.put_nowait((name, bytes(message.data)))

        return link.expect(heard)

    told: list[bool] = []
    a.answer(to("first", b.link), [b"1"], told.append)
    a.answer(to("second", second), [b"2"], told.append)
    assert told == [True, True]
    async with asyncio.timeout(LIMIT):
        assert [await came.get(), await came.get()] == [("first", b"1"), ("second", b"2")]


async def test_messages_of_a_burst_of_the_second_connection_go_in_one_datagram(
    make: Make, endless: None
) -> None:
    a, b = make(), make()
    own, other = second_of(a), second_of(b)
    a.open()
    inbox = b.open()
    came: asyncio.Queue[tuple[bool, bool]] = asyncio.Queue()
    b.listen("s", lambda data, sent, reply: came.put_nowait((b.link.bursting, other.bursting)))
    told: list[bool] = []
    own.gather.begin(2)
    for _ in range(40):  # one by one, they would not find room
        a.post(inbox, "s", [b"x"], told.append)
    assert told == []
    own.gather.end()
    assert told == [True] * 40
    async with asyncio.timeout(LIMIT):
        bursts = {await came.get() for _ in range(40)}
    assert bursts == {(True, True)}, "what they cause goes together, over either connection"


async def test_both_names_go_with_the_process(make: Make, tmp_path: Path) -> None:
    a, stays = make(), make()
    second_of(a)
    stays.open()
    a.open()
    names = set(os.listdir(directory(tmp_path)))
    assert names == {stays.inbox, a.inbox, second_inbox(a.inbox)}
    a.close()
    assert os.listdir(directory(tmp_path)) == [stays.inbox]


@pytest.mark.parametrize("second", [False, True])
async def test_a_name_that_a_cleaner_took_away_is_there_again(
    make: Make, tmp_path: Path, second: bool
) -> None:
    a, b = make(), make()
    link = second_of(b)
    a.open(), b.open()
    os.unlink(directory(tmp_path) / (link.options.inbox if second else b.inbox))
    b.tend()
    told: list[bool] = []
    for each in (b.link, link):
        a.answer(each.expect(lambda message: None), [b"x"], told.append)
    assert told == [True, True]
