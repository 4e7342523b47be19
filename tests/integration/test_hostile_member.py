"""A member with valid credentials of one role, and what becomes of the requests of others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from random import Random
from typing import Any

import numpy as np
import pytest
from support.meshes import Load, add_model, emptied, split_digits
from support.waiting import eventually

import swarm
from nodes.announce import announce
from nodes.up.mesh import LocalMesh, local_mesh
from swarm.errors import SwarmError
from swarm.fleet.advertised import LOAD_FIELDS, load_entries, serves_entries
from swarm.gossip import LAN, Gossip, GossipRequest
from swarm.link import Link, LinkMessage, LinkOptions, jetstream
from swarm.subjects import api
from swarm.transport.lane.pulls import Pulls
from swarm.wire.messages import Features
from swarm.wire.tensors import Part

pytestmark = [pytest.mark.integration, pytest.mark.processes]

ROLES = ("shard-1", "shard-2", "shard-3", "fallback")
REQUESTS, RATE = 40, 20.0  # of each load, and a second
HUGE = 1 << 20  # bytes of an answer
LATE = 0.5  # seconds


class Member:
    """A process with the rights of a shard of stage 1, and none of its manners."""

    def __init__(self, mesh: swarm.Mesh, nodes: list[str]) -> None:
        self.nodes = nodes  # honest ones
        self.link: Link = mesh.link
        self._subjects = mesh.subjects
        self.sent = 0
        self.claimed = self.named = 0

    def _publish(self, subject: str, data: list[Part] | bytes, reply: str = "") -> None:
        with contextlib.suppress(SwarmError):  # cut off by the server, or full: it goes on
            self.link.publish(subject, data, reply)

    async def _flushed(self) -> None:
        with contextlib.suppress(SwarmError, TimeoutError):
            await self.link.flush(1.0)
        await asyncio.sleep(0.01)

    async def floods_the_next_lane(self) -> None:
        """With bytes that are no message, and with valid features whose requester is nobody."""
        subject = self._subjects.features("digits", "1", 2)
        tensors = {"x": np.zeros(20_000, np.float32)}
        while True:
            for _ in range(20):
                self.sent += 1
                name, reply = f"made-up-{self.sent}", "_INBOX.nobody.at-all.1"
                features = Features(name, "digits", "1", 2, reply, 10_000_000, dict(tensors))
                data = features.parts() if self.sent % 2 else secrets.token_bytes(2000)
                self._publish(subject, data)
            await self._flushed()

    async def claims_work_and_never_answers(self) -> None:
        await self._claims(lambda features: None)

    async def answers_hugely_and_late(self) -> None:
        loop = asyncio.get_running_loop()

        def answer(features: Features) -> None:
            loop.call_later(LATE, self._publish, features.reply, bytes(HUGE))

        await self._claims(answer)

    async def _claims(self, then: Callable[[Features], object]) -> None:
        stream = self._subjects.stream("digits", "1", 1)
        inbox = f"{self.link.server_inbox}.claimed"
        consumer = self._subjects.consumer("digits", 1)
        pulls = Pulls(api("CONSUMER.MSG.NEXT", stream, consumer), inbox, 0)

        def take(message: LinkMessage) -> None:
            if not message.status:
                self.claimed += 1
                then(Features.decode(message.data))

        self.link.subscribe(inbox, take)
        while True:
            self._publish(pulls.subject, pulls.body(1), inbox)
            await asyncio.sleep(0.02)

    async def lies_in_gossip_and_statuses(self) -> None:
        """Under many names, of its own user and of another: that each is idle, and serves all
        stages."""
        stages = [("digits", "1", stage) for stage in (1, 2, 3)]
        idle = load_entries({where: [0] * LOAD_FIELDS for where in stages})
        answers = f"{self.link.options.inbox}.gossip"
        self.link.subscribe(answers, lambda message: None)
        while True:
            self.named += 1
            user = "bad" if self.named % 2 else "shard-2"
            name = f"{user}-{secrets.token_hex(4)}"
            gossip = Gossip(name, 2**40, Random(name))
            lies = {"role": "shard-1", "priority": 0, "inbox": f"_INBOX.{name}", "host": "here"}
            for key, value in (lies | serves_entries(stages) | idle).items():
                gossip.set(key, value, 0.0)
            for node in self.nodes:
                gossip.add_peer(node)
            for moment in range(1, 4):
                for effect in gossip.tick(float(moment)):
                    if isinstance(effect, GossipRequest):
                        self.sent += 1
                        subject = self._subjects.gossip(effect.peer)
                        self._publish(subject, effect.payload, answers)
            status = {"node": name, "state": "ready", "model": "digits", "stages": []}
            self._publish(self._subjects.status(name), json.dumps(status).encode())
            await self._flushed()


@contextlib.asynccontextmanager
async def meanwhile(work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """The hostile work goes on beside the block, and did not fail by itself."""
    task = asyncio.create_task(work())
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def answered(mesh: swarm.Mesh) -> Load:
    """A load all of whose requests are answered, rightly."""
    load = Load(mesh, RATE)
    await load.run(REQUESTS)
    load.check(REQUESTS)
    return load


@pytest.fixture
async def secured() -> AsyncIterator[LocalMesh]:
    async with local_mesh(secure=True) as local:
        await add_model(local, split_digits("1"), *ROLES)
        yield local


async def test_others_requests_are_answered_whatever_a_member_of_one_role_does(
    secured: LocalMesh,
) -> None:
    local = secured
    assert local.rights is not None
    rights = local.rights
    asks = rights.issue("requester", "digits").options()
    bad = rights.access("bad", "shard-1", "digits").options()
    link, subjects = local.mesh.link, local.mesh.subjects
    async with (
        swarm.connect(local.url, agent="near", **asks) as near,
        swarm.connect(local.url, agent="by-lane", stored=True, **asks) as by_lane,
        swarm.connect(local.url, agent="bad", **bad) as hostile,
    ):
        member = Member(hostile, list(local.statuses))

        # It takes what is in the lane of its stage: each message comes again to somebody honest.
        async with meanwhile(member.claims_work_and_never_answers):
            await answered(by_lane)
        assert member.claimed > 0
        claimed = member.claimed
        async with meanwhile(member.answers_hugely_and_late):
            await answered(by_lane)
        assert member.claimed > claimed

        async with meanwhile(member.lies_in_gossip_and_statuses):
            await answered(near)
        assert member.named > 0
        for node in member.nodes:
            known = local.statuses[node]["gossip"]["peers"]["alive"]
            assert known <= len(member.nodes) + 2 * LAN.user_nodes, node

        # That lane alone is full: what goes by the other stages' lanes, or by none, is not touched.
        stream = subjects.stream("digits", "1", 2)
        async with meanwhile(member.floods_the_next_lane):
            await answered(near)
            await answered(by_lane)
            info = await jetstream.call(link, api("STREAM.INFO", stream))
            assert info["state"]["bytes"] <= info["config"]["max_bytes"] > 0
            assert info["state"]["messages"] <= info["config"]["max_msgs_per_subject"]
        dead = await jetstream.call(link, api("STREAM.INFO", subjects.dead_stream))
        assert dead["state"]["bytes"] <= dead["config"]["max_bytes"] == 256 << 20
        assert dead["state"]["messages"] <= dead["config"]["max_msgs"] == 10_000

        # Revoked, it does no more harm: the lanes empty, and serve.
        rights.authority.revoke("bad")
        to = LinkOptions(servers=(local.url,), tls_ca=asks["tls_ca"])
        await announce(rights.authority, to)
        await eventually(lambda: not hostile.link.connected, "the member is cut off")
        await emptied(local)
        await answered(by_lane)
