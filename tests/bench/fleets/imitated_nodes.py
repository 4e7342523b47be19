"""A large fleet in one helper process.

An imitated node has no model and no process of its own, but its traffic is that of an idle node,
made by the same parts: a connection, gossip, a pull parked at a lane, service discovery, the
fleet's view, and a real node's status document under its own name. At its start each knows all
others: the benchmark is about a fleet that lives, not about one that a thousand nodes join at once.

It answers when all nodes pull.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import time
from dataclasses import dataclass
from typing import Any

import swarm
from bench.fleets.scale_point import STAGES
from bench.helpers import arguments, input_ended, tell
from nodes.duties.takeover import ADAPT_EVERY
from nodes.event_loop import run_event_loop
from swarm.errors import SwarmError
from swarm.fleet.advertised import serves_entries
from swarm.fleet.membership import Membership
from swarm.fleet.peers import Peers
from swarm.fleet.service import FleetAnswers
from swarm.fleet.status_interval import answer_after, asked_within, status_every
from swarm.link import Link, LinkMessage, LinkOptions
from swarm.requests.infer_service import InferService
from swarm.subjects import Subjects
from swarm.transport.lane import Lane, LaneOptions, consumer_config, ensure_lanes
from swarm.wire.messages import Request, Result
from swarm.wire.tensors import known_codecs

log = logging.getLogger("swarm.bench")

MODELS = 10  # whose stages the imitated nodes serve
CONNECTING_AT_ONCE = 32
CONNECT_TIMEOUT, READY_TIMEOUT = 30.0, 120.0  # seconds
NICE = 5  # of the process: in a fleet each of its nodes would have a processor of its own


@dataclass(frozen=True)
class Imitation:
    """url: of the server. count: nodes. status: the document of a real node."""

    url: str
    mesh: str
    count: int
    status: dict[str, Any]


def model_of(number: int) -> tuple[str, int]:
    """The model and the stage of an imitated node."""
    return f"imitated-{number // STAGES % MODELS}", number % STAGES + 1


class ImitatedNode:
    """`connect`, then `run` until cancelled."""

    def __init__(self, plan: Imitation, number: int) -> None:
        self.id = f"imitated-{number:04d}"
        self.link = Link(LinkOptions(servers=(plan.url,), name=self.id))
        subjects = self._subjects = Subjects(plan.mesh)
        self._status = plan.status | {"node": self.id, "inbox": self.link.options.inbox}
        self.members = Membership(self.link, subjects, Peers(self.id))
        model, stage = model_of(number)
        options = LaneOptions()
        self.lane = Lane(
            self.link,
            subjects.stream(model, "1", stage),
            consumer_config(subjects, model, "1", stage, options),
            lambda: ensure_lanes(self.link, subjects, model, "1", STAGES, options),
            lambda message: None,
        )
        self._fleet = FleetAnswers(self.link, subjects, self.id, self.members.view)
        about = {"node": self.id, "role": f"shard-{stage}", "mesh": plan.mesh, "model": model}
        self._service = InferService(
            self.link, f"swarm-{plan.mesh}", swarm.__version__, about, [], _answer
        )
        own: dict[str, object] = {
            "role": f"shard-{stage}",
            "priority": 0,
            "host": "",
            "inbox": self.link.options.inbox,
            "device": "cpu",
            "codecs": list(known_codecs()),
            "draining": False,
        }
        for key, value in (own | serves_entries([(model, "1", stage)])).items():
            self.members.set(key, value)

    async def connect(self, group: asyncio.TaskGroup) -> None:
        """Connect, and pull. Raises `TimeoutError`."""
        group.create_task(self.link.run())
        await self.link.ready(CONNECT_TIMEOUT)
        group.create_task(self.lane.run())
        await self.lane.ready(READY_TIMEOUT)
        self._service.start()
        self._fleet.start()
        self.link.subscribe(self._subjects.status_request, self._asked)
        self.link.subscribe(self._subjects.config_all, lambda _: None)

    async def tell(self) -> None:
        """A status as often as a node of such a fleet tells it, each node at its own moment."""
        await asyncio.sleep(random.uniform(0, status_every(self.members.gossip.alive)))
        while True:
            self.publish()
            await asyncio.sleep(status_every(self.members.gossip.alive))

    def _asked(self, request: LinkMessage) -> None:
        alive = self.members.gossip.alive
        after = answer_after(asked_within(request.data), alive, random.random())
        asyncio.get_running_loop().call_later(after, self.publish)

    def publish(self) -> None:
        """Publish the status as of now."""
        every = status_every(self.members.gossip.alive)
        document = self._status | {"uptime_s": round(time.monotonic(), 1), "every_s": every}
        self.link.publish(self._subjects.status(self.id), json.dumps(document).encode())

    async def tend(self) -> None:
        """Look at the lane as often as a node does."""
        await asyncio.sleep(random.uniform(0, ADAPT_EVERY))
        while True:
            self.lane.suit(self.members.gossip.alive)
            try:
                await self.lane.refresh()
            except SwarmError as error:
                log.info("%s: the lane is left as it is: %s", self.id, error)
            await asyncio.sleep(ADAPT_EVERY)


async def _answer(model: str, request: Request) -> Result:
    raise SwarmError(f"{model}: an imitated node serves nothing")


async def imitate(plan: Imitation) -> None:
    """Run the nodes until standard input ends."""
    nodes = [ImitatedNode(plan, number) for number in range(plan.count)]
    states = [node.members.gossip.states()[0] for node in nodes]
    for node in nodes:
        node.members.gossip.preload(states)
    slots = asyncio.Semaphore(CONNECTING_AT_ONCE)

    async def connect(node: ImitatedNode) -> None:
        async with slots:
            await node.connect(group)

    async with asyncio.TaskGroup() as group:
        await asyncio.gather(*(connect(node) for node in nodes))
        for node in nodes:  # all at once: who has not subscribed yet would be taken for dead
            group.create_task(node.members.run())
        for node in nodes:
            group.create_task(node.tell())
            group.create_task(node.tend())
        tell("ready")
        await input_ended()
        os._exit(0)  # a thousand drains would take longer than the benchmark


if __name__ == "__main__":
    os.nice(NICE)
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    run_event_loop(imitate(Imitation(**arguments())))
