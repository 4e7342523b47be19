"""The board of statuses that commands read: bounded, whatever members say."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from nodes.cli.status import MOST_SERVERS, StatusBoard
from swarm.fleet.picture import MOST_NODES
from swarm.link import LinkMessage
from swarm.subjects import Subjects


def board() -> tuple[StatusBoard, dict[str, Callable[[LinkMessage], None]]]:
    """A board, and its callbacks by subject."""
    callbacks: dict[str, Callable[[LinkMessage], None]] = {}
    link = SimpleNamespace(
        grants=SimpleNamespace(may_subscribe=lambda subject: True),
        subscribe=callbacks.__setitem__,
    )
    mesh: Any = SimpleNamespace(link=link, subjects=Subjects("default"))
    return StatusBoard(mesh), callbacks


def told(subject: str, document: dict[str, Any]) -> LinkMessage:
    return LinkMessage(subject, "", None, json.dumps(document).encode())


def test_a_member_that_says_many_names_takes_bounded_memory_and_hides_nobody() -> None:
    made, callbacks = board()
    subjects = Subjects("default")
    for name in ["honest", *(f"made-up-{number}" for number in range(MOST_NODES + 100)), "honest"]:
        callbacks[subjects.status_all](told(f"swarm.default.status.{name}", {"node": name}))
    assert len(made.statuses) == len(made.heard) == MOST_NODES
    assert "honest" in made.statuses


def test_made_up_servers_take_bounded_memory() -> None:
    made, callbacks = board()
    store = {"path": "", "state": "fine", "free_bytes": 1}
    for number in range(2 * MOST_SERVERS):
        document = {"url": f"nats://{number}", "pid": 1, "state": "up", "restarts": 0}
        document |= {"store": store, "notes": []}
        callbacks[Subjects("default").server](told("swarm.default.server", document))
    assert len(made.servers) == MOST_SERVERS
