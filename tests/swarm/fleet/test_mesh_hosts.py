"""A client listens to where nodes are while that is worth it, and no longer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from swarm.fleet.observed import FORGET_AFTER, IDLE_AFTER, REMEMBER, Hosts
from swarm.link import Link, LinkMessage, LinkOptions
from swarm.subjects import Subjects

KEY = ("m", "1", 1)


class Listener:
    """A client without a server; `tell` is a node's status."""

    def __init__(self) -> None:
        self.link = Link(LinkOptions())
        self.before = set(self.link._subscriptions)
        self.news = 0
        self.hosts = Hosts(self.link, Subjects("t"), self._heard_news)

    def _heard_news(self) -> None:
        self.news += 1

    def serving(self, large: bool) -> set[str]:
        return {peer.node for peer in self.hosts.serving(*KEY, large)}

    @property
    def listens(self) -> bool:
        return set(self.link._subscriptions) != self.before

    def tell(self, node: str, **more: object) -> None:
        doc = {"node": node, "state": "ready", "model": "m", "host_id": "here"}
        doc |= {"stages": [{"stage": 1, "version": "1"}], "inbox": f"_INBOX.{node}"} | more
        message = LinkMessage(f"swarm.t.status.{node}", "", None, json.dumps(doc).encode())
        for subject, _queue, callback in self.link._subscriptions.values():
            if subject == "swarm.t.status.*":
                callback(message)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves time on."""
    now = [time.monotonic()]
    monkeypatch.setattr("swarm.fleet.observed.time.monotonic", lambda: now[0])

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


def second(client: Listener, clock: Callable[[float], None], small: int) -> None:
    """One in which so many small messages are sent."""
    for _ in range(small):
        client.hosts.asked += 1
        client.hosts.serving(*KEY, False)
    clock(1.0)
    client.hosts.tend()


def test_who_asks_seldom_does_not_listen_and_who_asks_often_does(
    clock: Callable[[float], None],
) -> None:
    client = Listener()
    for _ in range(20):
        second(client, clock, 4)
    assert not client.listens
    for _ in range(2):
        second(client, clock, 30)
    assert client.listens
    for _ in range(int(IDLE_AFTER) + 2):
        second(client, clock, 1)
    assert not client.listens


def test_large_messages_are_worth_it_from_the_first_on(clock: Callable[[float], None]) -> None:
    client = Listener()
    assert client.hosts.serving(*KEY, True) == []
    client.tell("a", priority=2)
    client.tell("b", state="loading")
    client.tell("c", stages=[])
    found = {peer.node: peer for peer in client.hosts.serving(*KEY, False)}
    assert set(found) == {"a", "b"}
    assert (found["a"].priority, found["a"].inbox, found["a"].host) == (2, "_INBOX.a", "here")
    assert (found["a"].draining, found["b"].draining) == (False, True)
    client.tell("a", state="left")
    assert client.serving(large=True) == {"b"}
    client.hosts.tend()
    assert client.listens
    clock(IDLE_AFTER + 1)
    client.hosts.tend()
    assert not client.listens
    assert client.hosts.serving(*KEY, True) == []
    assert client.listens, "it begins anew"


def rested(clock: Callable[[float], None]) -> Listener:
    """One that heard of `a`, and has listened no more since."""
    client = Listener()
    client.serving(large=True)
    for _ in range(int(IDLE_AFTER) + 2):
        client.tell("a")
        clock(1.0)
        client.hosts.tend()
    assert not client.listens
    return client


def test_after_a_rest_what_was_heard_before_it_is_still_known(
    clock: Callable[[float], None],
) -> None:
    client = rested(clock)
    clock(REMEMBER - 5)
    assert client.serving(large=False) == {"a"}
    assert not client.listens, "a small one is not worth it"
    assert client.serving(large=True) == {"a"}
    assert client.listens


def test_what_was_heard_too_long_ago_is_forgotten(clock: Callable[[float], None]) -> None:
    client = rested(clock)
    clock(REMEMBER)
    assert client.serving(large=True) == set()


def test_who_does_not_speak_again_is_forgotten_as_soon_as_anyone_else(
    clock: Callable[[float], None],
) -> None:
    client = rested(clock)
    clock(20)
    assert client.serving(large=True) == {"a"}
    client.tell("b")
    clock(FORGET_AFTER - 0.5)
    assert client.serving(large=True) == {"a", "b"}
    client.tell("b")
    clock(0.6)
    assert client.serving(large=True) == {"b"}


def test_a_process_that_has_ended_is_forgotten_at_once(clock: Callable[[float], None]) -> None:
    client = rested(clock)
    before = client.news
    client.hosts.gone("_INBOX.other")
    assert (client.serving(large=False), client.news) == ({"a"}, before)
    client.hosts.gone("_INBOX.a")
    assert (client.serving(large=False), client.news) == (set(), before + 1)


def test_only_what_is_new_of_a_node_is_news() -> None:
    client = Listener()
    client.serving(large=True)
    told = []
    for more in ({}, {}, {"state": "draining"}, {"stages": []}, {}, {"state": "left"}):
        client.tell("a", **more)
        told.append(client.news)
    assert told == [1, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{}",
        b'{"node": 1}',
        b'{"node":"x","state":"ready","model":"m","stages":[1]}',
        b'{"node":"x","state":"ready","model":"m","stages":[],"priority":"high"}',
    ],
)
def test_what_is_no_status_says_nothing(document: bytes) -> None:
    client = Listener()
    client.hosts.serving(*KEY, True)
    for subject, _queue, callback in list(client.link._subscriptions.values()):
        if subject == "swarm.t.status.*":
            callback(LinkMessage("swarm.t.status.x", "", None, document))
    assert client.hosts.serving(*KEY, True) == []
