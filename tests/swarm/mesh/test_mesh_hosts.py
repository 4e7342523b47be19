"""A client listens to where nodes are while that is worth it, and no longer."""

from __future__ import annotations

import json
import time

import pytest

import swarm.hosts
from swarm.hosts import OFTEN, Hosts
from swarm.link import Link, LinkMessage, LinkOptions
from swarm.subjects import Subjects

KEY = ("m", "1", 1)


class Listener:
    """A client without a server; `tell` is a node's status."""

    def __init__(self) -> None:
        self.link = Link(LinkOptions())
        self.before = set(self.link._subscriptions)
        self.hosts = Hosts(self.link, Subjects("t"))

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


def test_who_asks_seldom_does_not_listen_and_who_asks_often_does() -> None:
    client = Listener()
    assert not any(client.hosts.worth_it(10.0 * n) for n in range(20))
    assert not client.listens
    now = 1000.0
    assert [client.hosts.worth_it(now + 0.2 * n) for n in range(OFTEN)] == [False] * (OFTEN - 1) + [
        True
    ]


def test_it_hears_of_nodes_as_long_as_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Listener()
    assert client.hosts.serving(*KEY) == []
    client.tell("a", priority=2)
    client.tell("b", state="loading")
    client.tell("c", stages=[])
    found = {peer.node: peer for peer in client.hosts.serving(*KEY)}
    assert set(found) == {"a", "b"}
    assert (found["a"].priority, found["a"].inbox, found["a"].host) == (2, "_INBOX.a", "here")
    assert (found["a"].draining, found["b"].draining) == (False, True)
    client.tell("a", state="left")
    assert {peer.node for peer in client.hosts.serving(*KEY)} == {"b"}
    client.hosts.tend()
    assert client.listens
    later = time.monotonic() + swarm.hosts.IDLE_AFTER + 1
    monkeypatch.setattr("swarm.hosts.time.monotonic", lambda: later)
    client.hosts.tend()
    assert not client.listens
    assert client.hosts.serving(*KEY) == []
    assert client.listens, "it begins anew"


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
    client.hosts.serving(*KEY)
    for subject, _queue, callback in list(client.link._subscriptions.values()):
        if subject == "swarm.t.status.*":
            callback(LinkMessage("swarm.t.status.x", "", None, document))
    assert client.hosts.serving(*KEY) == []
