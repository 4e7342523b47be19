"""How an attempt leaves its requester: to a node of this host, or by the server; into a lane of
stage 1, or in fast mode to whoever serves it.

What a node of this host takes is kept by the requester, which waits for its answer anyway, and
stored only when that node refuses it or is not done in good time (`swarm.transport.handover`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from swarm.errors import SwarmError
from swarm.fleet.placement import NOWHERE, Nearby
from swarm.lanes import Publisher
from swarm.link import Link
from swarm.local.compact import features_parts
from swarm.local.host_socket import Direct
from swarm.local.lending import UNLENT, Claims, Lent
from swarm.model import ModelInfo
from swarm.requests.admission import Gate
from swarm.requests.request import CORE, Ask
from swarm.subjects import ANY, Subjects
from swarm.transport.handover import Handovers
from swarm.wire.hops import Hop
from swarm.wire.messages import Features
from swarm.wire.tensors import Part

# Requests of this process under way up to which one goes to a node of this host without the
# server. In fast mode 16 and 64 that go together where they can have 24 and 9 % more requests a
# second than by the server.
FEW = 64
# More under way than this go together with what else a turn of the loop sends: of forty that were
# asked at once, one by one, ten fill a socket. (16 in flight: 5 % fewer requests a second for 14 %
# less CPU; more in flight: the same and 5 % less.)
LONE = 4


class Sent(NamedTuple):
    """An attempt that was handed over."""

    ask: Ask
    features: Features


class FirstLeg(Handovers[Sent]):
    """What goes to stage 1 of one model version. longest: seconds of a run of its slowest stage,
    at first as its manifest says, then as answers do. asks: what this process waits for."""

    longest = 0.0
    asks: Mapping[str, Ask]

    def _before(self, now: float) -> int:
        return max(0, len(self.asks) - 1 - len(self._held))

    def ran(self, reply: str, hops: tuple[Hop, ...]) -> None:
        """It was answered, over these hops."""
        self.answered(reply)
        if hops:
            took = max([hop.compute_us for hop in hops]) / 1e6
            self.longest += (took - self.longest) / 8


class Outgoing:
    """The sending half of a requester.

    asks: what waits for an answer, by reply subject. pick_lane(ask, remaining): the lane of stage 1
    for this attempt; `remaining` seconds of its budget are left.
    """

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        publisher: Publisher,
        claims: Claims | None,
        near: Callable[[ModelInfo, int, bool], Nearby],
        direct: Direct,
        asks: Mapping[str, Ask],
        gate: Callable[[ModelInfo], Gate],
        pick_lane: Callable[[Ask, float], str],
    ) -> None:
        self._link = link
        self._subjects = subjects
        self._publisher = publisher
        self._claims = claims
        self._near = near
        self._direct = direct
        self._asks = asks
        self._gate = gate
        self._pick_lane = pick_lane
        self._legs: dict[tuple[str, str], FirstLeg] = {}
        self._closed = False

    def send(self, ask: Ask, reply: str, now: float, spare: bool = False) -> None:
        """Send the present attempt; `now`: loop time. What comes of it later is told to the ask.
        spare: beside the one before, which goes on. Raises `SwarmError` when it cannot be sent."""
        info = ask.info
        if len(self._asks) > LONE and not self._link.bursting:
            self._link.gather.together()
        features = Features(
            id=ask.id,
            model=info.model,
            version=info.version,
            stage=1,
            reply=reply,
            budget_us=int((ask.deadline - now) * 1e6),
            tensors=dict(ask.tensors),
            attempt=ask.attempt,
            agent=ask.agent,
            sequence=ask.sequence,
            session=ask.session,
            traceparent=ask.traceparent,
            hops=list(ask.hops),
        )
        lent, near = UNLENT, NOWHERE
        if self._claims is not None and self._claims.host:
            features.host = self._claims.host
            large = self._claims.wants(features.tensors)
            if large or len(self._asks) <= FEW:
                near = self._near(info, 1, large)
            if near.shared and large:
                lent = self._claims.lend(features.tensors)
        if not spare:
            ask.fresh = self._goes_fresh(ask)
        with lent:
            if ask.fresh:
                self._fresh(ask, near, features, reply, lent)
                return
            lane = self._pick_lane(ask, ask.deadline - now)
            subject = self._subjects.features(info.model, info.version, 1, lane)
            ask.lent = lent
            inbox = self._short_cut(near, lane, ask)
            if not inbox or not self._hand_over(inbox, subject, Sent(ask, features), lent):
                parts = features.parts(lent.packed)
                self._store(ask, subject, parts, features.message_id, lent, spare)

    def _goes_fresh(self, ask: Ask) -> bool:
        """What was lost once goes by a lane; and all does while a stage may hang: lanes find who
        covers for it ten times as fast as gossip does."""
        if ask.delivery != CORE:
            return False
        if ask.laneless:
            ask.laneless = False
            return True
        return ask.attempt == 1 and not self._gate(ask.info).fast.doubtful(time.monotonic())

    def _short_cut(self, near: Nearby, lane: str, ask: Ask) -> str:
        """The inbox of the node of this host that takes the message; "" for the server's way, which
        every attempt but the first goes."""
        if ask.attempt > 1 or len(self._asks) > FEW or not self._link.connected:
            return ""
        inbox = near.inboxes.get(lane, "")
        gate = self._gate(ask.info)
        silences = gate.fast if ask.delivery == CORE else gate.silences
        if inbox and silences.doubtful(time.monotonic()):
            return ""
        return inbox

    # --- durable ----------------------------------------------------------------------

    def _hand_over(self, inbox: str, subject: str, sent: Sent, lent: Lent) -> bool:
        if self._closed:
            return False
        info = sent.ask.info
        leg = self._legs.get((info.model, info.version))
        if leg is None:
            leg = FirstLeg(self._link, self._direct, self, info, 0)
            leg.longest = max([stage.compute_ms / 1e3 for stage in info.stages], default=0.0)
            leg.asks = self._asks
            self._legs[info.model, info.version] = leg
        if not leg.takes(inbox, leg.longest):
            return False
        parts = features_parts(sent.features, lent)
        return leg.over(inbox, subject, parts, sent, lent, leg.longest, sent.features.reply)

    def handed(self, sent: Sent) -> None:
        """It is on its way to a node of this host (see `Keeper`)."""
        ask = sent.ask
        ask.handed = self._legs[ask.info.model, ask.info.version]
        ask.stored = True  # as much as need be
        ask.sent += 1
        if self._claims is not None:
            self._claims.collect()

    def done(self, sent: Sent, passed_on: bool) -> None:
        """A later lane has what came of it (see `Keeper`)."""

    def store(self, sent: Sent, lent: Lent, subject: str, late: bool) -> None:
        """That node does not take it, or is not done in good time (see `Keeper`)."""
        ask, features = sent
        waits = self._asks.get(features.reply) is ask and not self._closed
        if not waits or features.attempt != ask.attempt:  # nobody, or for another attempt
            lent.take_back()
            return
        ask.sent -= not late
        left = ask.deadline - asyncio.get_running_loop().time()
        features.budget_us = int(left * 1e6)
        try:
            with lent:
                parts = features.parts(lent.packed)
                self._store(ask, subject, parts, features.message_id, lent, late)
        except SwarmError as error:
            if not late:
                ask.settle(error)

    def lost(self, sent: Sent) -> None:
        """It could not be stored (see `Keeper`): ask again."""
        sent.ask.stored = False
        sent.ask.settle(None)

    def _store(
        self,
        ask: Ask,
        subject: str,
        parts: list[Part],
        message_id: str,
        lent: Lent,
        spare: bool,
    ) -> None:
        """Publish into a lane of stage 1. spare: another copy is on its way, and goes on."""
        attempt = ask.attempt

        def stored(error: SwarmError | None, sequence: int) -> None:
            if error is None:
                ask.stored = True
                if self._claims is not None:
                    self._claims.collect()
                return
            lent.take_back()
            if spare:
                ask.sent -= 1
            elif attempt == ask.attempt:
                ask.stored = False
                ask.settle(error)

        ask.stored = spare
        self._publisher.publish(subject, parts, message_id, stored)
        ask.sent += 1

    # --- fast mode --------------------------------------------------------------------

    def _fresh(self, ask: Ask, near: Nearby, features: Features, reply: str, lent: Lent) -> None:
        subject = self._subjects.fresh(ask.info.model, ask.info.version, 1)
        ask.stored = False
        if inbox := self._short_cut(near, ANY, ask):
            posted = partial(self._posted, ask, subject, features, reply, lent)
            self._direct.post(inbox, subject, features_parts(features, lent), posted)
        else:
            self._publish_fresh(ask, subject, features, reply, lent)

    def _posted(
        self, ask: Ask, subject: str, features: Features, reply: str, lent: Lent, sent: bool
    ) -> None:
        if self._asks.get(reply) is not ask:  # given up within the burst
            if sent:
                self.cancel(ask)
            else:
                lent.take_back()
            return
        if sent:
            self._went(ask, lent)
            return
        try:
            with lent:
                self._publish_fresh(ask, subject, features, reply, lent)
        except SwarmError as error:
            ask.settle(error)

    def _publish_fresh(
        self, ask: Ask, subject: str, features: Features, reply: str, lent: Lent
    ) -> None:
        """By the server. Raises `NotConnected`, `ResourceExhausted`."""
        self._link.publish(subject, features.parts(lent.packed), reply)
        self._went(ask, lent)

    def _went(self, ask: Ask, lent: Lent) -> None:
        ask.stored = True  # as much as it ever is in fast mode
        ask.sent += 1
        ask.lent = lent
        if self._claims is not None:
            self._claims.collect()

    # --- the end ----------------------------------------------------------------------

    def cancel(self, ask: Ask) -> None:
        """Nobody waits any more: an attempt that is still on its way need not be computed."""
        with contextlib.suppress(SwarmError):  # it only saves work
            subject = self._subjects.cancel(ask.info.model, ask.info.version)
            self._link.publish(subject, ask.id.encode())

    def close(self) -> None:
        """Nothing leaves any more."""
        self._closed = True
        while self._legs:
            self._legs.popitem()[1].close()
