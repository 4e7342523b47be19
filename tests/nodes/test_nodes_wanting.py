"""Each node tells how many nodes its stages want, of the whole model where its objective burns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nodes.duties.wanting import Wanting
from swarm.fleet.advertised import (
    Where,
    burns_entry,
    busy_entries,
    load_entries,
    serves_entries,
    valid,
)
from swarm.fleet.scaling import HIGH_FOR
from swarm.gossip import PeerView

BUSY = {1: 0.4, 2: 0.55, 3: 0.1}


def peers(burning: bool) -> list[PeerView]:
    """Three shards; the first one answers requests, and finds that the objective burns."""
    found = []
    for stage, busy in BUSY.items():
        where: Where = ("m", "1", stage)
        values = {"role": f"shard-{stage}", "priority": 0, **serves_entries([where])}
        values |= busy_entries({where: busy}) | load_entries({where: [0, 0, 9000, *[0] * 5]})
        if burning and stage == 1:
            key, value = burns_entry("m", "latency")
            assert valid(key, value)
            values[key] = value
        found.append(PeerView(f"n{stage}", "alive", 1, 1, values))
    return found


def wanted_by(stage: int, burning: bool) -> list[dict[str, Any]]:
    """What the node of a stage tells some seconds later."""
    connection: Any = SimpleNamespace(peers=SimpleNamespace(alive=lambda: peers(burning)))
    info = SimpleNamespace(model="m", version="1", last=3)
    serving: Any = SimpleNamespace(info=info, servers=[SimpleNamespace(info=info, stage=stage)])
    wanting = Wanting(connection, lambda: [serving])
    for tick in range(round(HIGH_FOR) + 2):
        wanting.look(float(tick))
    rows: list[dict[str, Any]] = wanting.status()["wanted"]
    return rows


def test_all_nodes_agree_which_stage_gets_a_node_for_an_objective_that_burns() -> None:
    told = [row for stage in BUSY for row in wanted_by(stage, burning=True)]
    assert [(r["stage"], r["replicas"], r["burns"]) for r in told] == [
        (1, 1, False),
        (2, 2, True),
        (3, 1, False),
    ]
    calm = [row for stage in BUSY for row in wanted_by(stage, burning=False)]
    assert [(row["stage"], row["replicas"]) for row in calm] == [(1, 1), (2, 1), (3, 1)]


def test_a_word_of_burning_that_is_malformed_is_refused() -> None:
    key, value = burns_entry("m", "latency")
    assert not valid(key, [*value, 1])
    assert not valid(key, ["other", "latency"])
    assert not valid(key, ["m", 7])
