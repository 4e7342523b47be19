"""The exchange over a real nats-server: nodes learn from each other, and hostile bytes change
nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from real_server import Links, cut
from support.waiting import GENEROUS, eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.fleet.membership import Membership
from swarm.fleet.peers import Peers
from swarm.gossip import LOCAL
from swarm.learning import delta_store
from swarm.learning.consensus.layout import digest_of
from swarm.learning.consensus.options import LearningOptions
from swarm.learning.consensus.participant import ConsensusEvent
from swarm.learning.consensus.refusals import Reason
from swarm.learning.exchange import DeltaExchange
from swarm.learning.subjects import LearningSubjects
from swarm.link import Link, LinkMessage
from swarm.security.attestation import GOSSIP_KEY, attest
from swarm.security.identity import Identity

SUBJECTS = LearningSubjects("default")
BASE = b"\7" * 32
QUICK = LearningOptions(messages_per_s=1000.0, snapshots_per_s=100.0)


@dataclass
class Learner:
    """One node that learns: its link, its gossip, its exchange."""

    link: Link
    members: Membership
    exchange: DeltaExchange
    events: list[ConsensusEvent]
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
        members = Membership(link, SUBJECTS, Peers(node, LOCAL))
        identity = Identity.make()
        members.set(GOSSIP_KEY, attest(identity, "default", node))
        exchange = DeltaExchange(
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
        events: list[ConsensusEvent] = []
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

        await eventually(all_follow, "that all follow their neighbours")

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


async def test_a_node_whose_connection_failed_follows_again(fleet: Fleet) -> None:
    learners = [await fleet.start() for _ in range(3)]
    await fleet.met()
    one, other = learners[0], learners[1]
    down = asyncio.Event()
    other.link.on_down.append(down.set)
    cut(other.link)
    await asyncio.wait_for(down.wait(), GENEROUS)
    update = nothing(one)
    update["weight"] += 1.0
    one.exchange.step(update)
    await other.link.ready(5.0)
    await other.link.flush()  # its subscriptions are made again
    one.exchange.step(nothing(one))
    await eventually(lambda: in_lock_step(learners), "that the copies are whole again")
    assert other.exchange.counters["refused"].keys() <= {"gap", "not_a_neighbour"}


async def test_a_node_that_comes_late_begins_where_the_others_are(fleet: Fleet) -> None:
    learners = [await fleet.start(value=0.5) for _ in range(3)]
    await fleet.met()
    await rounds(learners, 3, lambda: in_lock_step(learners))
    late = await fleet.start(value=0.0)
    await fleet.met()
    assert late.exchange.catch_up()
    assert np.allclose(late.exchange.parameters["weight"], 0.5)
    late.exchange.step(nothing(late))
    await eventually(lambda: in_lock_step(fleet.learners), what="that all follow the newcomer")


async def test_a_node_that_is_killed_is_a_neighbour_no_more(fleet: Fleet, links: Links) -> None:
    learners = [await fleet.start() for _ in range(3)]
    await fleet.met()
    killed = learners.pop()
    killed.task.cancel()
    await links.crash(killed.link)
    for learner in learners:
        await eventually(
            lambda it=learner: len(it.exchange.neighbours) == 1, "that its death is known"
        )
    await rounds(learners, 3, lambda: in_lock_step(learners))


async def test_hostile_bytes_and_a_flood_change_nothing_and_learning_goes_on(
    fleet: Fleet, links: Links, server: EmbeddedServer
) -> None:
    options = LearningOptions(messages_per_s=100.0)
    learners = [await fleet.start(options=options) for _ in range(2)]
    await fleet.met()
    victim, sender = learners
    before = digest_of(victim.exchange.participant.x)
    attacker = await links.connect(server.url)
    subject = SUBJECTS.deltas("digits", sender.members.node)
    for _ in range(3000):
        attacker.publish(subject, b"\x81\xa1v\x01" + b"noise" * 20)
    await attacker.flush()
    refused = victim.exchange.participant.refusals
    await eventually(lambda: sum(refused.total.values()) >= 3000, what="3000 refusals")
    assert set(refused.by_sender()) <= {sender.members.node, "(asker)"}
    assert digest_of(victim.exchange.participant.x) == before
    assert {event.node for event in victim.events} == {sender.members.node}
    assert len(victim.events) == len({event.detail.partition(":")[0] for event in victim.events})
    sender.exchange.step(nothing(sender))
    await eventually(lambda: in_lock_step(learners), "that the sender is heard again")


async def test_deltas_too_large_for_a_message_go_by_the_object_store(fleet: Fleet) -> None:
    options = LearningOptions(
        share=0.5, bytes_per_delta=1 << 22, messages_per_s=1000.0, snapshots_per_s=100.0
    )
    learners = [await fleet.start(30_000, options) for _ in range(2)]
    await fleet.met()
    update = nothing(learners[0])
    update["weight"] += np.random.default_rng(1).normal(0, 1, (30_000, 10)).astype(np.float32)
    for _ in range(2):
        learners[0].exchange.step(update)
    await eventually(lambda: in_lock_step(learners), "that the objects are fetched")
    assert learners[1].exchange.participant.accepted >= 3  # a snapshot, and two deltas
    assert learners[1].exchange.counters["failures"] == {}
    learners[1].exchange.mix()
    assert learners[1].exchange.parameters["weight"].any()


async def test_deltas_behind_one_that_is_being_fetched_are_taken_in_their_order(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = LearningOptions(
        share=0.5, bytes_per_delta=1 << 22, messages_per_s=1000.0, snapshots_per_s=100.0
    )
    sender, receiver = [await fleet.start(30_000, options) for _ in range(2)]
    await fleet.met()
    may_fetch, get = asyncio.Event(), delta_store.get

    async def get_later(*given: Any) -> bytes:
        await may_fetch.wait()
        return await get(*given)

    monkeypatch.setattr(delta_store, "get", get_later)
    came: list[LinkMessage] = []
    receiver.link.subscribe(SUBJECTS.deltas("digits", sender.members.node), came.append)
    await receiver.link.flush()
    update = nothing(sender)
    update["weight"] += np.random.default_rng(1).normal(0, 1, (30_000, 10)).astype(np.float32)
    for _ in range(3):
        sender.exchange.step(update)
    await eventually(lambda: len(came) == 3, what="that three deltas came")
    may_fetch.set()
    await eventually(lambda: in_lock_step([sender, receiver]), "that all are fetched")
    assert receiver.exchange.participant.refusals.total[Reason.GAP] == 0
