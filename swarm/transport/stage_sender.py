"""The way to one stage: each parcel goes by the way that is best for it at that moment."""

from __future__ import annotations

from collections.abc import Callable

from swarm.errors import SwarmError
from swarm.fleet.placement import Nearby
from swarm.lanes import Publisher
from swarm.link import Link
from swarm.local.host_socket import HostSocket
from swarm.local.lending import Lender
from swarm.model import ModelInfo
from swarm.subjects import ANY, Subjects
from swarm.transport.api import OnEvent, Refused, Sending
from swarm.transport.choose import Way, choose
from swarm.transport.fast import FastSender
from swarm.transport.handover.sender import HandoverSender
from swarm.transport.lane import LaneSender
from swarm.transport.parcel import Parcel
from swarm.wire.hops import Hop
from swarm.wire.tensors import Part


class Routes:
    """What all senders of one process share.

    placement(info, stage, large): which nodes of the stage are on this host, for a message with
    large tensors or without."""

    __slots__ = ("lender", "link", "placement", "publisher", "socket", "subjects")

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        publisher: Publisher,
        lender: Lender,
        socket: HostSocket,
        placement: Callable[[ModelInfo, int, bool], Nearby],
    ) -> None:
        self.link = link
        self.subjects = subjects
        self.publisher = publisher
        self.lender = lender
        self.socket = socket
        self.placement = placement


class _InLane:
    """A parcel that its lane has, or is to have: nothing is left to do for it (a `Sending`)."""

    __slots__ = ()

    def told(self, word: Part) -> None:
        """No process holds the parcel: no word comes."""

    def unheard(self) -> None:
        """The lane answers by its PubAck."""

    def answered(self, hops: tuple[Hop, ...]) -> None:
        """Nothing is kept for it."""

    def drop(self) -> None:
        """What is stored is cancelled by its id."""


IN_LANE = _InLane()


class StageSender:
    """Sends to stage `stage` of a model version (a `Sender`); a requester sends to stage 1.

    pace(): seconds of a run, as the sender has seen it lately; in_flight(): parcels of the sender
    that are under way, by any way.
    """

    def __init__(
        self,
        routes: Routes,
        info: ModelInfo,
        stage: int,
        pace: Callable[[], float] = lambda: 0.0,
        in_flight: Callable[[], int] = lambda: 0,
    ) -> None:
        link, subjects, socket = routes.link, routes.subjects, routes.socket
        self._routes = routes
        self._info = info
        self._stage = stage
        self._pace = pace
        self._in_flight = in_flight
        # The slowest stage from here on, as the manifest says.
        self._longest = max((s.compute_ms / 1e3 for s in info.stages[stage - 1 :]), default=0.0)
        self._lane = LaneSender(routes.publisher, subjects, info.model, info.version, stage)
        self._fast = FastSender(link, socket, subjects, info.model, info.version, stage - 1)
        self._handover = HandoverSender(link, socket, self._lane, stage - 1, info.last)

    def send(self, parcel: Parcel, on: OnEvent) -> Sending:
        routes, features = self._routes, parcel.features
        first = features.attempt == 1
        peer = ""
        if first and routes.lender.host:
            # A later attempt carries its bytes, by the server: it needs nobody's memory to live.
            large = routes.lender.wants(features.tensors)
            nearby = routes.placement(self._info, self._stage, large)
            if nearby.shared and large:
                try:
                    parcel.lend(routes.lender)
                except SwarmError as error:
                    on(Refused(error))
                    return IN_LANE
            peer = nearby.inboxes.get(ANY if parcel.fast else parcel.lane, "")
        run = max(self._pace(), self._longest)
        accepted = not parcel.fast and peer != "" and self._handover.accepts(peer, run)
        way = choose(
            fast=parcel.fast,
            attempt=features.attempt,
            reachable=peer != "",
            connected=routes.link.connected,
            doubtful=parcel.doubtful,
            in_flight=self._in_flight(),
            accepted=accepted,
        )
        if way is Way.HAND_OVER:
            return self._handover.send(parcel, on, peer, run)
        if way is Way.SOCKET:
            return self._fast.send(parcel, on, peer)
        if way is Way.SERVER:
            return self._fast.send(parcel, on)
        self._handover.passed_by()
        self.store(parcel, on)
        return IN_LANE

    def store(self, parcel: Parcel, on: OnEvent) -> None:
        """Into the lane, whatever other ways there are: for a parcel that waited for room there."""
        self._lane.send(parcel, on)

    def close(self) -> None:
        """Nothing is handed over any more; a parcel that is held is stored, or refused."""
        self._handover.close()
        self._fast.close()
