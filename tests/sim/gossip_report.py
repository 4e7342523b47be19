"""What the gossip achieves, measured in simulation: the figures behind its targets.

Rounds are of `config.interval` seconds. A row with a target says whether it was met.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sim.gossip_world import Cut, World
from swarm.gossip.config import LAN, GossipConfig

Row = dict[str, Any]


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the least value that `share` (0..1) of all do not exceed.

    Raises `ValueError` when there are no values.
    """
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


FULL_PACE = replace(LAN, calm_above=LAN.max_nodes)  # every round contacts `fanout` peers


def spread(
    nodes: int,
    *,
    loss: float = 0.0,
    seed: int = 1,
    changes: int = 5,
    config: GossipConfig = FULL_PACE,
) -> Row:
    """Rounds until every node has a changed key. Target: 12, 40 where the pace is calm."""
    most_rounds = 40 if nodes > config.calm_above else 12
    world = World(nodes, seed=seed, loss=loss, config=config)
    world.run(2)
    rounds = []
    for change in range(changes):
        name = world.rng.choice(list(world.nodes))
        world.set(name, "load", change)

        def everywhere(name: str = name, change: int = change) -> bool:
            return world.knowing(name, "load", change) == nodes

        taken = world.rounds_until(everywhere, 50)
        rounds.append(math.inf if taken is None else taken)
    most = max(rounds)
    return {
        "scenario": "spread",
        "nodes": nodes,
        "loss": loss,
        "rounds_p50": _finite(percentile(rounds, 0.5)),
        "rounds_max": _finite(most),
        "target": f"rounds_max <= {most_rounds}",
        "met": most <= most_rounds,
    }


def traffic(nodes: int, *, changes: int = 1, rounds: int = 20, seed: int = 1) -> Row:
    """Bytes and messages that a node sends per round, at `changes` changed keys per round in the
    whole mesh."""
    world = World(nodes, seed=seed)
    world.run(3)
    before, messages = world.sent(), sum(n.messages for n in world.nodes.values())
    names = list(world.nodes)
    for passed in range(rounds):
        for _ in range(changes):
            world.set(world.rng.choice(names), "load", passed)
        world.run(1)
    sent = world.sent() - before
    count = sum(n.messages for n in world.nodes.values()) - messages
    return {
        "scenario": "traffic",
        "nodes": nodes,
        "changes_per_round": changes,
        "bytes_per_node_per_round": round(sent / nodes / rounds, 1),
        "messages_per_node_per_round": round(count / nodes / rounds, 2),
        "largest_message_bytes": world.largest,
        "target": "largest_message_bytes <= message_bytes",
        "met": world.largest <= world.config.message_bytes,
    }


def crash(
    nodes: int,
    *,
    loss: float = 0.0,
    crashes: int = 20,
    seed: int = 1,
    config: GossipConfig = FULL_PACE,
) -> Row:
    """Rounds from a crash until the first peer, and until all, know it. Targets: 2 and 14; 25 and
    40 where the pace is calm, one contact a second: whose crash matters to a node is watched."""
    most_first, most_all = (25, 40) if nodes > config.calm_above else (2, 14)
    world = World(nodes, seed=seed, loss=loss, config=config)
    world.run(3)
    first, everybody = [], []
    for victim in world.rng.sample(list(world.nodes), min(crashes, nodes // 2)):
        world.run(world.rng.random())
        start = world.now
        world.crash(victim)

        def known(victim: str = victim) -> bool:
            return world.seeing(victim, "dead") == len(world.alive())

        taken = world.rounds_until(known, 60)
        times = [time for time, _, who in world.noted("died", start) if who == victim]
        first.append((min(times) - start) / world.config.interval if times else math.inf)
        everybody.append(math.inf if taken is None else taken)
    row: Row = {"scenario": "crash", "nodes": nodes, "loss": loss, "crashes": len(first)}
    for name, values in (("first_rounds", first), ("all_rounds", everybody)):
        row[f"{name}_p50"] = _finite(percentile(values, 0.5))
        row[f"{name}_p99"] = _finite(percentile(values, 0.99))
    row["target"] = f"first_rounds_p99 <= {most_first}, all_rounds_p99 <= {most_all}"
    row["met"] = percentile(first, 0.99) <= most_first and percentile(everybody, 0.99) <= most_all
    return row


def false_positives(
    nodes: int, *, loss: float = 0.1, rounds: int = 300, config: GossipConfig = LAN, seed: int = 1
) -> Row:
    """Living nodes declared dead, or suspected, by a peer. Target: no death."""
    world = World(nodes, seed=seed, loss=loss, config=config)
    world.run(rounds)
    hours = nodes * rounds * config.interval / 3600.0
    deaths = len(world.noted("died"))
    return {
        "scenario": "false positives",
        "nodes": nodes,
        "loss": loss,
        "node_hours": round(hours, 3),
        "deaths_per_node_hour": round(deaths / hours, 3),
        "suspicions_per_node_hour": round(len(world.noted("suspected")) / hours, 1),
        "target": "deaths_per_node_hour == 0",
        "met": deaths == 0,
    }


def hang(nodes: int, *, seed: int = 1) -> Row:
    """Rounds until a stopped process is suspected by a peer, and dead to the first and to all."""
    world = World(nodes, seed=seed)
    world.run(3)
    victim, start = world.rng.choice(list(world.nodes)), world.now
    world.pause(victim, 1e9)
    taken = world.rounds_until(lambda: world.seeing(victim, "dead") == nodes - 1, 400)
    row: Row = {"scenario": "hang", "nodes": nodes, "all_rounds": taken}
    for kind in ("suspected", "died"):
        times = [time for time, _, who in world.noted(kind, start) if who == victim]
        rounds = (min(times) - start) / world.config.interval if times else math.inf
        row[f"first_{kind}_rounds"] = _finite(rounds)
    return row


def split(nodes: int, cut: Cut, *, seed: int = 1) -> Row:
    """Rounds until both halves of a split have buried each other, and until they agree again."""
    world = World(nodes, seed=seed)
    world.run(3)
    names = list(world.nodes)
    half = nodes // 2
    world.split(names[:half], cut)
    apart = world.rounds_until(
        lambda: all(world.seeing(name, "dead") >= min(half, nodes - half) for name in names), 400
    )
    world.set(names[0], "written", "here")
    world.set(names[-1], "written", "there")
    world.heal()
    healed = world.rounds_until(world.agree, 200)
    return {
        "scenario": "split",
        "nodes": nodes,
        "cut": cut,
        "apart_rounds": apart,
        "healed_rounds": healed,
        "target": "heals",
        "met": apart is not None and healed is not None,
    }


def join(nodes: int, *, seed: int = 1) -> Row:
    """Rounds until a newcomer, told of one peer, knows all and is known to all."""
    world = World(nodes, seed=seed)
    world.run(3)
    newcomer = world.join(next(iter(world.nodes)))
    gossip = world.nodes[newcomer].gossip

    def joined() -> bool:
        return len(gossip.states()) == nodes + 1 and world.seeing(newcomer, "alive") == nodes

    return {"scenario": "join", "nodes": nodes, "rounds": world.rounds_until(joined, 400)}


def run_report(*, quick: bool = True, seed: int = 1) -> dict[str, Any]:
    """All scenarios, as JSON-able rows. Quick: about 10 s; otherwise some minutes."""
    sizes = (10, 100, 1000) if quick else (10, 100, 500, 1000, 2000)
    few = 3 if quick else 20
    rows = [spread(n, seed=seed, changes=few) for n in sizes]
    rows += [traffic(n, seed=seed, rounds=5 if quick else 50) for n in sizes]
    rows.append(spread(1000, seed=seed, changes=few, config=LAN))
    rows.append(crash(1000, seed=seed, crashes=3 if quick else 40, config=LAN))
    rows.append(crash(100, seed=seed, crashes=40))
    rows.append(crash(1000, seed=seed, crashes=1 if quick else 40))
    for loss in (0.1,) if quick else (0.05, 0.1, 0.2):
        rows.append(false_positives(50, loss=loss, rounds=100 if quick else 6000, seed=seed))
    rows += [hang(n, seed=seed) for n in ((10, 50) if quick else (10, 100, 500))]
    for cut in ("silent", "no_responders"):
        rows += [split(n, cut, seed=seed) for n in ((10, 30) if quick else (10, 100, 200))]
    rows += [join(n, seed=seed) for n in ((100,) if quick else (100, 1000))]
    return {
        "seed": seed,
        "interval_s": LAN.interval,
        "rows": rows,
        "met": all(row.get("met", True) for row in rows),
    }


def _finite(value: float) -> float | None:
    return round(value, 2) if math.isfinite(value) else None
