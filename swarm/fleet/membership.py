"""Gossip over NATS: drives the pure state machine of `swarm.gossip` with real messages.

An exchange is a request on `swarm.<mesh>.gossip.<peer>`: "no responders" is a crash, known at
once; a timeout is silence. Newcomers find the mesh by service discovery (`$SRV.PING`), so
there is no seed list.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
from collections import Counter
from collections.abc import Callable

from swarm.errors import NotConnected, SwarmError
from swarm.fleet.advertised import of_load
from swarm.fleet.bound_names import is_bound
from swarm.fleet.peers import Peers
from swarm.gossip import Event, GossipRequest, Send
from swarm.gossip.effects import Effect
from swarm.gossip.wire import MeshKey
from swarm.link import Link, LinkMessage
from swarm.periodic import beat
from swarm.subjects import INBOX, Subjects

log = logging.getLogger("swarm.gossip")

DISCOVER_EVERY = 10.0  # seconds between two questions for a node that no peer has told of
QUEUE = "someone"  # the nodes' queue group: one of them answers such a question
DISCOVER_EVERY_ALONE = 1.0  # seconds between two discoveries, as long as no peer is known
# Seconds after a reconnect in which a missing subscription is no proof of death: after a restart of
# the server, nodes that live have not subscribed again yet.
SETTLE_FOR = 3.0

_members_of_this_process = itertools.count()


class Membership:
    """Keeps a node's view of its peers, and theirs of it. `run()` gossips until cancelled.

    on_event: each is called with each change. Whoever learns that a process of this host has ended
    calls `gone`.
    """

    def __init__(self, link: Link, subjects: Subjects, peers: Peers) -> None:
        self._link = link
        self._subjects = subjects
        self._peers = peers
        self._config = peers.config
        self._clock = peers.clock
        self.node = peers.node
        self.gossip = peers.gossip
        self.view = peers.view
        self.alive = peers.alive
        self.on_event: list[Callable[[Event], None]] = []
        self._refused: set[str] = set()  # own keys that could not be written
        self._waiting: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        self._discovered = 0.0
        self._finds = ""  # where nodes answer to discovery
        self.sent_bytes = self.received_bytes = 0  # of gossip, without discovery
        self.events: Counter[str] = Counter()  # by kind
        self._connected = 0.0
        # Milliseconds: nodes that share a process do not all speak at once.
        self._apart = random.randrange(1000) if next(_members_of_this_process) else 0

    @property
    def unanswered(self) -> int:
        """Questions to peers that still wait for an answer."""
        return len(self._waiting)

    def set(self, key: str, value: object) -> bool:
        """Write one of this node's own keys.

        False when the value cannot be gossiped, as a rule because it is too large. The key stays as
        it was; the refusal is counted (`own_value_refused`, in the node's status) and logged once.
        """
        self._peers.changed()
        try:
            changed = self.gossip.set(key, value, self._clock())
        except ValueError as error:
            self.gossip.counters["own_value_refused"] += 1
            if key not in self._refused:
                self._refused.add(key)
                log.warning("not gossiped: %s", error)
            return False
        if changed and not of_load(key):
            self.gossip.detector.hurry()
        if key in self._refused:
            self._refused.discard(key)
            log.info("%s is gossiped again", key)
        return True

    def delete(self, key: str) -> None:
        """Delete one of this node's own keys, at its peers too; unknown ones are ignored."""
        self._peers.changed()
        self._refused.discard(key)
        self.gossip.delete(key, self._clock())
        if not of_load(key):
            self.gossip.detector.hurry()

    def use_keys(self, mesh_key: MeshKey) -> None:
        """The mesh changes its key: see `Gossip`. Raises `ValueError`."""
        self.gossip.use_keys(mesh_key)

    async def run(self) -> None:
        """One round each `config.interval` seconds, until cancelled."""
        sids = [
            self._link.subscribe(self._subjects.gossip(self.node), self._receive),
            self._link.subscribe(self._subjects.someone, self._say_who, QUEUE),
        ]
        self._finds = self._link.expect(self._found)
        self._link.on_up.append(self._reconnected)
        self._link.on_down.append(self._forget_waiting)
        try:
            self._discover()
            while True:
                await beat(self._config.interval, self._apart)
                if not self._link.connected:
                    continue  # while we are not connected, the peers' silence says nothing
                now = self._clock()
                pause = DISCOVER_EVERY_ALONE if self.gossip.detector.alone else DISCOVER_EVERY
                if now - self._discovered > pause:
                    self._discover()
                self.gossip.bind_users(is_bound(self._link.grants, self._subjects))
                self._apply(self.gossip.tick(now))
        finally:
            self._link.on_up.remove(self._reconnected)
            self._link.on_down.remove(self._forget_waiting)
            self._forget_waiting()
            for sid in sids:
                self._link.unsubscribe(sid)
            self._link.forget(self._finds)

    def watch(self, nodes: frozenset[str]) -> None:
        """See a crash of these nodes at once, however large the fleet is."""
        self.gossip.watch(nodes)

    def leave(self) -> None:
        """Tell some peers that this node leaves; they tell the others."""
        self._apply(self.gossip.leave(self._clock()))

    # --- this host ---------------------------------------------------------------------------

    def gone(self, inbox: str) -> None:
        """The process of this host that has this inbox has no socket any more: its node is asked at
        once, and it is dead if nobody listens there."""
        now = self._clock()
        for peer in self.view().values():
            if peer.values.get("inbox") == inbox:
                self._apply(self.gossip.detector.ask_now(peer.node, now))
                return

    # --- the wire -----------------------------------------------------------------------

    def _apply(self, effects: list[Effect]) -> None:
        self._peers.changed()
        for effect in effects:
            try:
                if isinstance(effect, GossipRequest):
                    self._request(effect)
                elif isinstance(effect, Send):
                    self.sent_bytes += len(effect.payload)
                    self._link.publish(self._subjects.gossip(effect.peer), effect.payload)
                else:
                    self.gossip.noticed(effect)
                    self.events[effect.kind] += 1
                    for tell in self.on_event:
                        tell(effect)
            except NotConnected:
                log.debug("gossip waits for the connection")
            except SwarmError as error:
                log.warning("gossip: %s", error)

    def _request(self, effect: GossipRequest) -> None:
        reply = self._link.expect(self._answered)
        timer = asyncio.get_running_loop().call_later(effect.timeout, self._timeout, reply)
        self._waiting[reply] = (effect.token, timer)
        self.sent_bytes += len(effect.payload)
        self._link.publish(self._subjects.gossip(effect.peer), effect.payload, reply)

    def _answered(self, message: LinkMessage) -> None:
        entry = self._waiting.pop(message.subject, None)
        self._link.forget(message.subject)
        if entry is None:
            return
        token, timer = entry
        timer.cancel()
        self.received_bytes += len(message.data)
        now = self._clock()
        if message.status == b"503":
            settling = now - self._connected < SETTLE_FOR
            outcome = self.gossip.on_timeout if settling else self.gossip.on_no_responders
            self._apply(outcome(token, now))
        else:
            self._apply(self.gossip.on_reply(token, bytes(message.data), now))

    def _timeout(self, reply: str) -> None:
        entry = self._waiting.pop(reply, None)
        self._link.forget(reply)
        if entry is not None:
            self._apply(self.gossip.on_timeout(entry[0], self._clock()))

    def _forget_waiting(self) -> None:
        """The connection is lost: silence means nothing now."""
        for reply, (token, timer) in self._waiting.items():
            timer.cancel()
            self._link.forget(reply)
            self.gossip.detector.settle(token)  # otherwise its node would count as asked for ever
        self._waiting.clear()

    def _receive(self, message: LinkMessage) -> None:
        if message.headers is not None:
            return  # from a stream: somebody had the server send it here
        data = message.data
        self.received_bytes += len(data)
        # A message that is too large is refused by its size alone: it is not even copied whole.
        payload = bytes(data[: self._config.refuse_bytes + 1])
        answer, effects = self.gossip.on_request(payload, self._clock())
        if answer is not None and INBOX.fullmatch(message.reply):
            self.sent_bytes += len(answer)
            self._link.publish(message.reply, answer)
        self._apply(effects)

    # --- discovery ------------------------------------------------------------------------

    def _reconnected(self) -> None:
        self._connected = self._clock()
        self._discover()

    def _discover(self) -> None:
        """Look for nodes. A node that knows no peer asks all nodes. One that knows peers asks any
        one node: otherwise a fleet of n would answer n² questions."""
        self._discovered = self._clock()
        alone = self.gossip.detector.alone
        subject = self._subjects.discovery if alone else self._subjects.someone
        try:
            self._link.publish(subject, b"", self._finds)
        except SwarmError as error:
            log.debug("no discovery at present: %s", error)

    def _say_who(self, message: LinkMessage) -> None:
        if not INBOX.fullmatch(message.reply):
            return
        try:
            about = {"metadata": {"node": self.node}}
            self._link.publish(message.reply, json.dumps(about).encode())
        except SwarmError as error:
            log.debug("not answered who is there: %s", error)

    def _found(self, message: LinkMessage) -> None:
        if message.status:
            return  # no services yet: we are the first
        try:
            node = json.loads(bytes(message.data))["metadata"]["node"]
            if node != self.node:
                self.gossip.add_peer(node)
        except (ValueError, KeyError, TypeError, RecursionError):
            self.gossip.counters["malformed_discovery"] += 1
