"""The exchange over a real nats-server: nodes learn from each other, and hostile bytes change
nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import numpy as np
import pytest
from real_server import Links, eventually

from swarm.fleet.membership import Membership
from swarm.gossip import LOCAL
from swarm.learning.layout import digest_of
from swarm.learning.options import LearningOptions
from swarm.learning.participant import Event
from swarm.link import Link
from swarm.services.embedded import EmbeddedServer
from swarm.services.exchange import Exchange
from swarm.subjects import Subjects
from swarm.trust.attestation import GOSSIP_KEY, attest
from swarm.trust.identity import Identity

SUBJECTS = Subjects("default")
BASE = b"\7" * 32
QUICK = LearningOptions(messages_per_s=1000.0, snapshots_per_s=100.0)


@dataclass
class Learner:
    """One node that learns: its link, its gossip, its exchange."""

    link: Link
    members: Membership
    exchange: Exchange
    events: list[Event]
    task: asyncio.Task[None]


class Fleet:
    """Starts learners on one server, and ends them."""

    def __init__(self, server: EmbeddedServer, links: Links) -> None:
        self._server, self._links = server, links
        self.learners: list[Learner] = []

    async def start(
        self, size: int = 40, options: LearningOptions = QUICK, value: float = 0.0
    ) -> Learner:
        link = await self._links.connect(self._server.url)
        node = f"node-{len(self.learners)}"
        members = Membership(link, SUBJECTS, node, lambda event: None, LOCAL)
        identity = Identity.make()
        members.set(GOSSIP_KEY, attest(identity, "default", node))
        exchange = Exchange(
            link,
            SUBJECTS,
            members,
            identity,
            "digits",
            "1",
            BASE,
            {"weight": np.full((size, 10), value, np.float32), "bias": np.zeros(10, np.float32)},
            options=options,
        )
        events: list[Event] = []
        exchange.on_event(events.append)

        async def run() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(members.run())
                group.create_task(exchange.run())

        # A peer that is told of needs no discovery, for which nodes are services.
        for other in self.learners:
            members.gossip.add_peer(other.members.node)
        task = asyncio.create_task(run())
        self.learners.append(Learner(link, members, exchange, events, task))
        return self.learners[-1]

    async def met(self) -> None:
        """Wait until every learner follows all its neighbours."""
        least = min(2, len(self.learners) - 1)

        def all_follow() -> bool:
            return all(
                it.exchange.followed == it.exchange.neighbours
                and len(it.members.alive()) == len(self.learners)
                and len(it.exchange.neighbours) >= least
                for it in self.learners
            )

        await eventually(all_follow, 10.0, "that all follow their neighbours")

    async def stop(self, learner: Learner) -> None:
        learner.task.cancel()
        await asyncio.gather(learner.task, return_exceptions=True)

    async def close(self) -> None:
        for learner in self.learners:
            await self.stop(learner)


@pytest.fixture
async def fleet(server: EmbeddedServer, links: Links) -> AsyncIterator[Fleet]:
    started = Fleet(server, links)
    yield started
    await started.close()


def nothing(learner: Learner) -> dict[str, np.ndarray]:
    return {name: np.zeros_like(a) for name, a in learner.exchange.parameters.items()}


async def rounds(learners: list[Learner], number: int, settled: Callable[[], bool]) -> None:
    """So many rounds of all learners without local updates; each begins when all deltas of the one
    before have come."""
    for _ in range(number):
        for learner in learners:
            learner.exchange.mix()
            learner.exchange.step(nothing(learner))
        await eventually(settled, what="that all deltas come")


def in_lock_step(learners: list[Learner]) -> bool:
    """Whether each copy is as far as its original, and the same bits."""
    by_node = {learner.members.node: learner.exchange.participant for learner in learners}
    for learner in learners:
        for node in learner.exchange.followed:
            copy = learner.exchange.participant.copy_of(node)
            assert copy is not None
            if copy[:2] != by_node[node].position:
                return False
            assert digest_of(copy[2]) == digest_of(by_node[node].estimate)
    return True


async def test_four_nodes_agree_on_the_mean_of_what_they_learned(fleet: Fleet) -> None:
    learners = [await fleet.start() for _ in range(4)]
    await fleet.met()
    for number, learner in enumerate(learners):
        update = nothing(learner)
        update["weight"][number] += 1.0
        learner.exchange.step(update)
    await eventually(lambda: in_lock_step(learners), what="that all deltas come")
    await rounds(learners, 60, lambda: in_lock_step(learners))
    for learner in learners:
        weight = learner.exchange.parameters["weight"]
        assert np.abs(weight[:4] - 0.25).max() < 0.02
        assert np.abs(weight[4:]).max() == 0
        # Who asks for a snapshot before gossip has told of it is refused, and asks again.
        assert learner.exchange.counters["refused"].keys() <= {"not_a_neighbour"}
