"""A client listens to where nodes are while that is worth it, and no longer."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from support.fake_link import FakeLink

from swarm.fleet.status_interval import asked_within, silent_after
from swarm.fleet.status_listener import (
    ASK_WITHIN,
    IDLE_AFTER,
    MOST_NODES,
    REMEMBER_FOR,
    StatusListener,
)
from swarm.link import LinkMessage
from swarm.subjects import Subjects

SUBJECTS = Subjects("t")
STAGE = ("m", "1", 1)


Callback = Callable[[LinkMessage], None]


class Statuses(FakeLink):
    """A link without a server: it delivers only the statuses that a test publishes."""

    def __init__(self) -> None:
        self.callbacks: dict[int, Callback] = {}
        super().__init__()

    def subscribe(self, subject: str, callback: Callback, queue: str = "") -> int:
        sid = super().subscribe(subject, callback, queue)
        if subject == SUBJECTS.status_all:
            self.callbacks[sid] = callback
        return sid

    def unsubscribe(self, sid: int) -> None:
        super().unsubscribe(sid)
        del self.callbacks[sid]

    def hears(self, document: bytes, speaker: str = "x") -> None:
        for callback in list(self.callbacks.values()):
            callback(LinkMessage(SUBJECTS.status(speaker), "", None, document))


class Client:
    """A client in simulated time; `status` is a node's."""

    def __init__(self) -> None:
        self.link = Statuses()
        self.news = 0
        self.now = 100.0
        self.sent = 0
        self.listener = StatusListener(self.link, SUBJECTS, self._count_news, lambda: self.now)

    def _count_news(self) -> None:
        self.news += 1

    @property
    def listens(self) -> bool:
        assert self.listener.listening == bool(self.link.callbacks)
        return self.listener.listening

    @property
    def known(self) -> set[str]:
        return {peer.node for peer in self.listener.serving(*STAGE)}

    def sends(self, *, large: bool) -> None:
        self.sent += 1
        if large:
            self.listener.wanted()

    def tend(self) -> None:
        self.listener.tend(self.sent)

    def status(self, node: str, **more: object) -> None:
        doc = {"node": node, "state": "ready", "model": "m", "host_id": "here"}
        doc |= {"stages": [{"stage": 1, "version": "1"}], "inbox": f"_INBOX.{node}"} | more
        self.link.hears(json.dumps(doc).encode(), node)

    def seconds(self, count: int, *, small: int = 0, heard: str = "") -> None:
        """So many seconds, in each of which it sends so many small messages and hears a node."""
        for _ in range(count):
            for _ in range(small):
                self.sends(large=False)
            if heard:
                self.status(heard)
            self.now += 1.0
            self.tend()


def test_a_client_that_seldom_sends_small_messages_does_not_listen() -> None:
    client = Client()
    client.seconds(20, small=4)
    assert not client.listens


def test_a_client_that_often_sends_small_messages_listens_while_it_does() -> None:
    client = Client()
    client.seconds(2, small=30)
    assert client.listens
    client.seconds(int(IDLE_AFTER) + 2, small=1)
    assert not client.listens


def test_a_large_message_is_worth_listening_at_once_and_for_a_while() -> None:
    client = Client()
    client.sends(large=True)
    assert client.listens
    [(subject, body)] = client.link.sent
    assert subject == SUBJECTS.status_request
    assert asked_within(body) == ASK_WITHIN, "the nodes of a large fleet do not all tell at once"
    client.tend()
    assert client.listens
    client.now += IDLE_AFTER + 1
    client.tend()
    assert not client.listens
    client.sends(large=True)
    assert client.listens, "it begins anew"


def test_a_question_about_nodes_neither_listens_nor_ends_listening() -> None:
    client = Client()
    assert client.known == set()
    assert not client.listens
    client.sends(large=True)
    client.now += 10 * IDLE_AFTER
    assert client.known == set()
    assert client.listens


def test_a_status_says_what_a_node_serves_and_where_it_is() -> None:
    client = Client()
    client.sends(large=True)
    client.status("a", priority=2)
    client.status("b", state="loading")
    client.status("c", stages=[])
    found = {peer.node: peer for peer in client.listener.serving(*STAGE)}
    assert set(found) == {"a", "b"}
    assert (found["a"].priority, found["a"].inbox, found["a"].host) == (2, "_INBOX.a", "here")
    assert (found["a"].draining, found["b"].draining) == (False, True)
    client.status("a", state="left")
    assert client.known == {"b"}


def rested() -> Client:
    """A client that heard of `a`, and has listened no more since."""
    client = Client()
    client.sends(large=True)
    client.seconds(int(IDLE_AFTER) + 2, heard="a")
    assert not client.listens
    return client


def test_what_is_remembered_is_not_of_now_before_the_nodes_have_spoken_again() -> None:
    client = rested()
    assert client.known == {"a"}
    assert not client.listener.current
    client.sends(large=True)
    client.status("a", stages=[{"stage": 1, "version": "2"}])
    assert client.listens
    assert not client.listener.current
    client.seconds(1, heard="a")
    assert client.listener.current


def test_after_a_rest_the_nodes_heard_before_it_are_still_known() -> None:
    client = rested()
    client.now += REMEMBER_FOR - 5
    client.sends(large=False)
    assert client.known == {"a"}
    assert not client.listens, "a small one is not worth it"
    client.sends(large=True)
    assert client.known == {"a"}
    assert client.listens


def test_a_node_heard_too_long_ago_is_forgotten() -> None:
    client = rested()
    client.now += REMEMBER_FOR
    client.sends(large=True)
    assert client.known == set()


def test_a_node_remembered_that_stays_silent_is_forgotten_as_soon_as_any_other() -> None:
    client = rested()
    client.now += 20
    client.sends(large=True)
    assert client.known == {"a"}
    client.status("b")
    client.now += silent_after({}) - 0.5
    assert client.known == {"a", "b"}
    client.status("b")
    client.now += 0.6
    assert client.known == {"b"}


def test_a_node_that_speaks_each_ten_seconds_is_known_until_it_has_missed_three_statuses() -> None:
    client = Client()
    for _ in range(3):
        client.sends(large=True)
        client.status("seldom", every_s=10.0)
        client.now += 9.9
        assert client.known == {"seldom"}
    client.now += 2 * 10.0
    assert client.known == {"seldom"}
    client.now += 0.2
    assert client.known == set()


@pytest.mark.parametrize(
    ("told", "after"), [("soon", 3.0), (None, 3.0), (0.001, 3.0), (-1e9, 3.0), (1e9, REMEMBER_FOR)]
)
def test_a_pace_that_cannot_be_keeps_a_silent_node_no_longer_than_any_may_be(
    told: object, after: float
) -> None:
    client = Client()
    client.sends(large=True)
    client.status("a", every_s=told)
    client.now += after - 0.1
    assert client.known == {"a"}
    client.now += 0.2
    assert client.known == set()


def test_a_process_that_has_ended_is_forgotten_at_once() -> None:
    client = rested()
    before = client.news
    client.listener.gone("_INBOX.other")
    assert (client.known, client.news) == ({"a"}, before)
    client.listener.gone("_INBOX.a")
    assert (client.known, client.news) == (set(), before + 1)


def test_only_a_change_of_a_node_is_news() -> None:
    client = Client()
    client.sends(large=True)
    told = []
    for more in ({}, {}, {"state": "draining"}, {"stages": []}, {}, {"state": "left"}):
        client.status("a", **more)
        told.append(client.news)
    assert told == [1, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        b'{"node": 1}',
        b'{"node":"a.b","state":"ready","model":"m","stages":[]}',
        b'{"node":"x","state":"ready","model":"m","stages":[1]}',
        b'{"node":"x","state":"ready","model":"m","stages":[],"priority":"high"}',
    ],
)
def test_a_message_that_is_no_status_says_nothing(document: bytes) -> None:
    client = Client()
    client.sends(large=True)
    client.link.hears(document)
    assert (client.known, client.news) == (set(), 0)


def test_a_member_speaks_for_no_node_but_itself() -> None:
    client = Client()
    client.sends(large=True)
    client.status("victim")
    doc = {"node": "victim", "state": "left", "model": "m", "stages": []}
    client.link.hears(json.dumps(doc).encode(), speaker="liar")
    assert (client.known, client.news) == ({"victim"}, 1)


def test_a_member_that_says_many_names_takes_bounded_memory_and_hides_nobody() -> None:
    client = Client()
    client.sends(large=True)
    client.status("honest")
    for number in range(2 * MOST_NODES):
        client.status(f"made-up-{number}")
    assert len(client.known) == MOST_NODES
    assert "honest" in client.known
