"""A fleet of members in one process, each with a link of its own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from real_server import Links
from support.waiting import eventually

from swarm.errors import NotConnected
from swarm.fleet.membership import Membership
from swarm.fleet.peers import Peers
from swarm.gossip import LAN, Event, GossipConfig
from swarm.link import Link, LinkMessage
from swarm.subjects import Subjects

SUBJECTS = Subjects("test")
DISCOVERY = SUBJECTS.discovery


@dataclass
class Member:
    link: Link
    gossip: Membership
    task: asyncio.Task[None]
    events: list[Event] = field(default_factory=list)

    def state_of(self, node: str) -> str:
        peer = self.gossip.view().get(node)
        return "unknown" if peer is None else peer.state

    def value_of(self, node: str, key: str) -> object:
        peer = self.gossip.view().get(node)
        return None if peer is None else peer.values.get(key)

    def heard(self, kind: str) -> list[str]:
        return [event.node for event in self.events if event.kind == kind]


class Fleet:
    """Members that answer service discovery as a node's service does."""

    def __init__(self, links: Links, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.links = links
        self.url = url
        self._clock = clock
        self.members: list[Member] = []

    async def join(
        self,
        node: str,
        *,
        key: bytes | None = None,
        config: GossipConfig = LAN,
        discoverable: bool = True,
        subjects: Subjects = SUBJECTS,
    ) -> Member:
        link = await self.links.connect(self.url)
        events: list[Event] = []
        gossip = Membership(link, subjects, Peers(node, config, key, self._clock))
        gossip.on_event.append(events.append)
        if discoverable:
            announce(link, node, subjects)
        task = asyncio.get_running_loop().create_task(gossip.run())
        member = Member(link, gossip, task, events)
        self.members.append(member)
        return member

    async def start(self, *nodes: str) -> list[Member]:
        """Members who all know each other."""
        members = [await self.join(node) for node in nodes]
        await self.agree(members, nodes)
        return members

    async def agree(self, members: list[Member], nodes: tuple[str, ...]) -> None:
        await eventually(
            lambda: all(m.state_of(n) == "alive" for m in members for n in nodes),
            "that all know all",
        )

    async def hang(self, member: Member) -> None:
        """Its subscription stays; nobody answers there any more."""
        member.link.subscribe(SUBJECTS.gossip(member.gossip.node), lambda _: None)
        await member.link.flush()
        member.task.cancel()
        await asyncio.gather(member.task, return_exceptions=True)

    async def close(self) -> None:
        tasks = [member.task for member in self.members]
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        failures = [r for r in results if isinstance(r, Exception)]
        assert not failures, f"a member ended by an exception: {failures}"


def announce(link: Link, node: str, subjects: Subjects) -> None:
    """Answer service discovery with the metadata of a node."""

    def answer(message: LinkMessage) -> None:
        try:
            link.publish(message.reply, json.dumps({"metadata": {"node": node}}).encode())
        except NotConnected:
            return

    link.subscribe(subjects.discovery, answer)
