"""The way to one stage: chosen for each parcel by one pure function, then taken."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from functools import partial

from swarm.errors import SwarmError
from swarm.fleet.placement import NOWHERE, Nearby
from swarm.flow.latency import LatencyWindow, Usual
from swarm.model import ModelInfo
from swarm.subjects import ANY
from swarm.transport.api import OnEvent, Refused, Sending
from swarm.transport.coding import StageCoder
from swarm.transport.fast import FastSender
from swarm.transport.handover.sender import HandoverSender
from swarm.transport.lane_sender import LaneSender
from swarm.transport.parcel import Parcel, are_large
from swarm.transport.routes import Routes
from swarm.wire.hops import Hop
from swarm.wire.tensors import Part

# Parcels of one sender under way, up to which the next one takes the short cut: with more, the
# server's bursts carry more requests a second (measured in fast mode: 16 and 64 in flight gain 24
# and 9 % by the short cut).
MOST_IN_FLIGHT = 64


class Way(Enum):
    """LANE and SERVER go through nats-server; the other two are short cuts of one host."""

    HAND_OVER = auto()  # to a process of this host, stored in the lane if that is not soon done
    LANE = auto()  # stored
    SOCKET = auto()  # fast mode, to a process of this host
    SERVER = auto()  # fast mode, to a queue group


def choose(
    *,
    fast: bool,
    attempt: int,
    reachable: bool,
    connected: bool,
    doubtful: bool,
    in_flight: int,
    accepted: bool,
) -> Way:
    """The way of one parcel.

    attempt: 1 the first time; a later attempt goes by the server, whatever was in the way of the
    first. reachable: the stage's only primary is a process of this host. connected: to the server,
    which a short cut falls back on. doubtful: processes of this host may hang. accepted: the
    process takes parcels at present (`HandoverPolicy.accepts`).
    """
    short = (
        reachable and attempt == 1 and connected and not doubtful and in_flight <= MOST_IN_FLIGHT
    )
    if fast:
        return Way.SOCKET if short else Way.SERVER
    return Way.HAND_OVER if short and accepted else Way.LANE


class _InLane:
    """A parcel that its lane has, or is to have: nothing is left to do for it (a `Sending`)."""

    __slots__ = ()

    def on_ack(self, verb: Part) -> None:
        """No process has the parcel: no ack comes."""

    def on_no_responders(self) -> None:
        """The lane answers by its PubAck."""

    def answered(self, hops: tuple[Hop, ...]) -> None:
        """Nothing is kept for it."""

    def drop(self) -> None:
        """What is stored is cancelled by its id."""


IN_LANE = _InLane()


class StageSender:
    """Sends to stage `stage` of a model version.

    requests: the sender is a requester, who waits for the answer on the parcels' reply subject;
    only requesters send to stage 1.

    run_time: how long a run takes, as the sender has seen it lately. in_flight(), where they are
    counted: parcels of the sender that are under way, by any way.
    """

    def __init__(
        self,
        routes: Routes,
        info: ModelInfo,
        stage: int,
        run_time: Usual | LatencyWindow | None = None,
        in_flight: Callable[[], int] | None = None,
        requests: bool = False,
    ) -> None:
        link, subjects, socket = routes.link, routes.subjects, routes.socket
        requests = requests or stage == 1
        self._routes = routes
        self._info = info
        self._stage = stage
        self._run_time = Usual() if run_time is None else run_time
        self._in_flight = in_flight
        # The slowest stage from here on, as the manifest says.
        self._longest = max((s.compute_ms / 1e3 for s in info.stages[stage - 1 :]), default=0.0)
        self._nearby = NOWHERE
        self._placed = -1  # `Placement.forgotten` when it was made
        self._subject_of = partial(subjects.features, info.model, info.version, stage)
        self._shared_lane = self._subject_of(ANY)
        self._lane = LaneSender(routes.publisher)
        self._fast = FastSender(
            link, socket, subjects, info.model, info.version, stage, requests=requests
        )
        self._coder = StageCoder(routes, info, stage)
        self._handover = HandoverSender(
            link, socket, self._lane, stage - 1, info.last, routes.clock, requests=requests
        )

    def send(self, parcel: Parcel, on: OnEvent) -> Sending:
        """Send now; never waits, never raises a `SwarmError`. Events may come before the return."""
        routes, attempt = self._routes, parcel.features.attempt
        peer = ""
        if attempt == 1 and routes.lender.host:
            # A later attempt carries its bytes through the server: it does not depend on any
            # process's memory.
            nearby = self._look_around()
            if are_large(parcel.features.tensors):
                if routes.look_out is not None:
                    routes.look_out()
                if nearby.shared:
                    try:
                        parcel.lend(routes.lender)
                    except SwarmError as error:
                        on(Refused(error))
                        return IN_LANE
            peer = nearby.inboxes.get(ANY if parcel.fast else parcel.lane, "")
        run = max(self._run_time.ewma, self._longest)
        way = choose(
            fast=parcel.fast,
            attempt=attempt,
            reachable=peer != "",
            connected=routes.link.connected,
            doubtful=parcel.doubtful,
            in_flight=0 if self._in_flight is None else self._in_flight(),
            accepted=not parcel.fast and peer != "" and self._handover.accepts(peer, run),
        )
        if way is Way.SOCKET:
            return self._fast.send(parcel, on, peer)
        if way is not Way.HAND_OVER:
            try:
                self._coder.code(parcel)
            except SwarmError as error:
                on(Refused(error))
                return IN_LANE
        if way is Way.SERVER:
            return self._fast.send(parcel, on)
        subject = self._shared_lane if parcel.lane == ANY else self._subject_of(parcel.lane)
        if way is Way.HAND_OVER:
            return self._handover.send(parcel, on, peer, subject, run)
        self._handover.count_stored()
        self._lane.send(subject, parcel, on)
        return IN_LANE

    def _look_around(self) -> Nearby:
        placement = self._routes.placement
        if self._placed != placement.forgotten:
            self._placed = placement.forgotten
            self._nearby = placement.at(self._info, self._stage)
        return self._nearby

    def store(self, parcel: Parcel, on: OnEvent) -> None:
        """Into the lane, whatever other ways there are: for a parcel that waited for room there."""
        self._lane.send(self._subject_of(parcel.lane), parcel, on)

    def close(self) -> None:
        """Nothing is handed over any more; a parcel in flight is stored, or refused."""
        self._handover.close()
        self._fast.close()
