"""What `swarm audit verify` believes of the nodes' words about their own records."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nodes.records.commands.audit import stored_last
from swarm.fleet.view import FleetView


def told(audit: Any) -> FleetView:
    fleet = FleetView()
    status = {"v": 1, "node": "a", "role": "shard-1", "state": "ready", "audit": audit}
    fleet.take_status("swarm.m.status.a.-", json.dumps(status).encode(), 1.0)
    assert "a" in fleet.nodes
    return fleet


def test_a_node_names_its_recorder_and_its_last_record() -> None:
    audit = {"recorder": "r", "sequence": 7, "hash": "abc", "lost": 0}
    assert stored_last(told(audit)) == {"r": (7, "abc")}


@pytest.mark.parametrize(
    "audit",
    [None, "r", [], {"recorder": "r"}, {"recorder": ["r"], "sequence": 1, "hash": "a"}]
    + [{"recorder": "r", "sequence": word, "hash": "a"} for word in ("1", None, [], 1e400)],
)
def test_a_node_whose_word_is_of_no_known_form_is_not_asked_for_records(audit: Any) -> None:
    assert stored_last(told(audit)) == {}
