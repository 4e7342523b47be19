"""`swarm drain` takes a part of an id only where a person can have meant that node."""

from __future__ import annotations

import pytest
from statuses import message

from nodes.cli.drain import the_node
from swarm.errors import InvalidArgument, NotFound
from swarm.fleet.view import FleetView

IDS = {"shard-1-vm-84kcxrn": "shard-1", "shard-2-pi-q0zw3ma": "shard-2", "s3-7hd02kk": "gateway"}


def fleet() -> FleetView:
    view = FleetView()
    for node, role in IDS.items():
        view.take_status(*message(node, role=role), 1.0)
    return view


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("shard-1-vm-84kcxrn", "shard-1-vm-84kcxrn"),
        ("shard-1", "shard-1-vm-84kcxrn"),
        ("shard-2-p", "shard-2-pi-q0zw3ma"),
        ("vm", "shard-1-vm-84kcxrn"),
        ("pi-q0zw3ma", "shard-2-pi-q0zw3ma"),
        ("84kcxrn", "shard-1-vm-84kcxrn"),
        ("gateway", "s3-7hd02kk"),
        ("s3", "s3-7hd02kk"),
    ],
)
def test_a_node_is_named_by_its_beginning_a_whole_word_or_its_role(named: str, meant: str) -> None:
    assert the_node(fleet(), named, 1.5) == meant


@pytest.mark.parametrize("named", ["x", "84k", "xrn", "hard-1", "d-2", "ateway", "v", "", "-"])
def test_any_other_part_is_refused_with_the_nodes_that_there_are(named: str) -> None:
    with pytest.raises(NotFound) as refused:
        the_node(fleet(), named, 1.5)
    assert all(node in str(refused.value) for node in IDS)


def test_what_several_nodes_have_is_refused_with_those() -> None:
    with pytest.raises(InvalidArgument, match="shard-1-vm-84kcxrn, shard-2-pi-q0zw3ma"):
        the_node(fleet(), "shard", 1.5)
