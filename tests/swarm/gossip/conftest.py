"""Drives state machines against each other without a network."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from swarm.gossip import Effect, Event, Gossip, GossipConfig, GossipRequest, Send

Deliver = Callable[..., list[tuple[str, Event]]]


@pytest.fixture
def make() -> Callable[..., Gossip]:
    """A node with a seeded source of randomness, which its id and instance decide."""

    def build(node: str, incarnation: int = 1, instance: int = 0, **options: object) -> Gossip:
        return Gossip(node, incarnation, Random(f"{node}/{instance}"), **options)  # type: ignore[arg-type]

    return build


@pytest.fixture
def deliver() -> Deliver:
    """Carries out effects among `nodes` at once until none are left; who is not in it has no
    responders, who is in `silent` never answers. Returns the events and who reported them."""

    def run(
        nodes: dict[str, Gossip],
        source: str,
        effects: list[Effect],
        now: float,
        silent: tuple[str, ...] = (),
    ) -> list[tuple[str, Event]]:
        events: list[tuple[str, Event]] = []
        queue = [(source, effect) for effect in effects]
        steps = 0
        while queue:
            steps += 1
            assert steps < 20_000, "an exchange does not end"
            origin, effect = queue.pop(0)
            gossip = nodes[origin]
            if isinstance(effect, Event):
                events.append((origin, effect))
                continue
            target = nodes.get(effect.peer)
            more: list[Effect]
            if isinstance(effect, Send):
                if target is not None and effect.peer not in silent:
                    _, more = target.on_request(effect.payload, now)
                    queue += [(effect.peer, each) for each in more]
                continue
            assert isinstance(effect, GossipRequest)
            if effect.peer in silent:
                queue += [(origin, each) for each in gossip.on_timeout(effect.token, now)]
            elif target is None:
                queue += [(origin, each) for each in gossip.on_no_responders(effect.token, now)]
            else:
                reply, more = target.on_request(effect.payload, now)
                queue += [(effect.peer, each) for each in more]
                more = (
                    gossip.on_timeout(effect.token, now)
                    if reply is None
                    else gossip.on_reply(effect.token, reply, now)
                )
                queue += [(origin, each) for each in more]
        return events

    return run


@pytest.fixture
def mesh(make: Callable[..., Gossip], deliver: Deliver) -> Callable[..., dict[str, Gossip]]:
    """Nodes that have met: the first is everybody's first peer."""

    def build(*names: str, config: GossipConfig | None = None) -> dict[str, Gossip]:
        options = {"config": config} if config else {}
        nodes = {name: make(name, **options) for name in names}
        for name in names[1:]:
            nodes[name].add_peer(names[0])
        for turn in range(6):
            for name, gossip in nodes.items():
                deliver(nodes, name, gossip.tick(turn / 10), turn / 10)
        return nodes

    return build
