"""Two processes' ends of the seam on a real server: what is sent by any way, and what comes."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from support.waiting import eventually

from swarm.errors import DecodeError
from swarm.fleet.advertised import StagePeer
from swarm.fleet.priorities import PRIMARY
from swarm.link import LinkMessage, LinkOptions, jetstream
from swarm.mesh import Mesh
from swarm.model import ModelInfo, Spec, Stage
from swarm.samehost.compact import decode_result
from swarm.samehost.memory import MIN_BYTES, unavailable
from swarm.subjects import ANY, api
from swarm.transport.api import Acked, Backlog, Delivery, Event, Published, Refused, Sending, Stored
from swarm.transport.handover.acks import VERBS
from swarm.transport.lane import LaneOptions
from swarm.transport.parcel import Parcel
from swarm.transport.source import SourceOptions, StageSource
from swarm.transport.stage_sender import StageSender
from swarm.wire.messages import Features, Result

LIMIT = 30.0  # seconds; only a fault gets there
AT_ONCE = 8  # parcels; a socket of the kernel takes ten datagrams by default
SPEC = (Spec("x", "FP32", (-1, 4)),)
INFO = ModelInfo("m", "1", SPEC, SPEC, (Stage(1, SPEC, SPEC, 0.01), Stage(2, SPEC, SPEC, 0.01)))
LARGE_INFO = replace(INFO, outputs=(Spec("x", "FP32", (1, 1 << 20)),))
"""Of large messages: it goes over the second connection, where there are two."""
LARGE = MIN_BYTES // 16  # rows of four numbers


@dataclass(frozen=True)
class Path:
    """fast: in fast mode. here: to a process of this host. stage: of the receiver; 1 means that a
    requester sends. two: each process has two connections, and these messages go over the second.
    """

    name: str
    fast: bool = False
    here: bool = False
    stage: int = 2
    two: bool = False

    @property
    def handed(self) -> bool:
        """Whether parcels are handed over."""
        return self.here and not self.fast


LANE = Path("lane")
HANDED = Path("handed over by a stage", here=True)
HANDED_BY_REQUESTER = Path("handed over by a requester", here=True, stage=1)
HANDED_BY_SECOND = Path("handed over, of second connections", here=True, two=True)
FAST = Path("fast, by the server", fast=True)
FAST_HERE = Path("fast, by a socket", fast=True, here=True)
PATHS = [LANE, HANDED, HANDED_BY_REQUESTER, HANDED_BY_SECOND, FAST, FAST_HERE]

every_path = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
stored_or_handed = pytest.mark.parametrize(
    "path", [LANE, HANDED, HANDED_BY_REQUESTER], ids=lambda path: path.name
)
handed_over = pytest.mark.parametrize(
    "path", [HANDED, HANDED_BY_REQUESTER], ids=lambda path: path.name
)


def usual_end(path: Path) -> type:
    """What becomes of a parcel where nothing goes wrong."""
    if path.fast:
        return Published
    return Acked if path.handed else Stored


@dataclass
class Counts:
    """What a source counts (`swarm.transport.delivery.DeliveryCounts`)."""

    failed: int = 0
    refused: int = 0
    redelivered: int = 0
    dead_lettered: int = 0
    taken: int = 0


class Receiver:
    """A process that serves a stage; `work` is done with each delivery."""

    def __init__(self, mesh: Mesh, stage: int, node: str, options: SourceOptions) -> None:
        self.mesh = mesh
        self.node = node
        self.counts = Counts()
        self.came: list[Delivery] = []
        self.work: Callable[[Delivery], Any] = lambda delivery: None
        self.backlog = Backlog(0, 0.0, False)
        self._new: asyncio.Queue[Delivery] = asyncio.Queue()
        self.source = StageSource(
            mesh.routes_for(LARGE_INFO),
            INFO,
            stage,
            node,
            options,
            self.counts,
            self._accept,
            lambda: self.backlog,
        )
        self._task: asyncio.Task[None] | None = None

    def _accept(self, delivery: Delivery) -> None:
        self.came.append(delivery)
        self._new.put_nowait(delivery)
        self.work(delivery)

    async def open(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self.source.run())
        await self.source.ready(LIMIT)
        await self.mesh.bulk.flush()

    async def delivery(self) -> Delivery:
        """The next one that came."""
        async with asyncio.timeout(LIMIT):
            return await self._new.get()

    @property
    def values(self) -> list[float]:
        """What came, by the first number of each."""
        return [float(delivery.features.tensors["x"][0, 0]) for delivery in self.came]

    async def close(self) -> None:
        """As a node that leaves."""
        task, self._task = self._task, None
        if task is not None:
            await self.source.drain()
            self.source.close()
            await asyncio.wait_for(task, LIMIT)


class Sent:
    """One parcel, and what its sender was told of it."""

    def __init__(self, parcel: Parcel) -> None:
        self.parcel = parcel
        self.sending: Sending | None = None
        self.events: list[Event] = []
        self.answers: list[Result] = []
        self.defect: type[Event] | None = None  # the event on which its sender fails
        self._new: asyncio.Queue[Event] = asyncio.Queue()
        self._answer: asyncio.Queue[Result] = asyncio.Queue()

    def on(self, event: Event) -> None:
        if self.defect is not None and isinstance(event, self.defect):
            raise ValueError("a defect")
        self.events.append(event)
        self._new.put_nowait(event)

    def heard(self, message: LinkMessage) -> None:
        """What comes to the parcel's own reply subject, as a requester takes it."""
        if message.data in VERBS:
            if self.sending is not None:
                self.sending.on_ack(message.data)
        elif message.status == b"503":
            if self.sending is not None:
                self.sending.on_no_responders()
        else:
            with contextlib.suppress(DecodeError):
                self.answers.append(decode_result(message.data))
                self._answer.put_nowait(self.answers[-1])

    async def event(self) -> Event:
        """The next thing that its sender is told."""
        async with asyncio.timeout(LIMIT):
            return await self._new.get()

    async def answer(self) -> Result:
        async with asyncio.timeout(LIMIT):
            return await self._answer.get()

    async def final(self) -> Event:
        """What became of it."""
        while not isinstance(event := await self.event(), Stored | Acked | Published | Refused):
            pass
        return event


class Rig:
    """A sender, and receivers; each has a mesh of its own, as a process of its own would."""

    def __init__(self, url: str, path: Path, lanes: LaneOptions) -> None:
        self.url = url
        self.path = path
        self.name = f"t{secrets.token_hex(4)}"
        self.lanes = lanes
        self.peers: list[StagePeer] = []
        self.receivers: list[Mesh] = []
        self.number = 0
        self._stack = contextlib.AsyncExitStack()
        self.mesh: Mesh
        self.sender: StageSender

    async def __aenter__(self) -> Rig:
        self.mesh = await self.process(lambda info, stage: self.peers)
        self.sender = StageSender(self.mesh.routes_for(LARGE_INFO), INFO, self.path.stage)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def process(self, known_peers: Any = lambda info, stage: []) -> Mesh:
        """One more process's end."""
        options = LinkOptions(servers=(self.url,))
        made = Mesh(options, self.name, known_peers=known_peers, two_connections=self.path.two)
        return await self._stack.enter_async_context(made)

    async def receiver(self, node: str = "n1", priority: int = PRIMARY) -> Receiver:
        """A process that serves the stage, and that the sender knows of."""
        options = SourceOptions(priority=priority, credit=8, most_credit=8, lanes=self.lanes)
        made = Receiver(await self.process(), self.path.stage, node, options)
        self.receivers.append(made.mesh)
        await made.open()
        self._stack.push_async_callback(made.close)
        if self.path.here:
            self.knows(made.mesh.inbox, node, priority)
        return made

    def knows(self, inbox: str, node: str = "n1", priority: int = PRIMARY) -> None:
        """The sender learns that a process of this host serves the stage."""
        self.peers.append(StagePeer(node, priority, self.mesh.lender.host, False, inbox))
        self.mesh.placement.forget()

    def send(
        self,
        value: float = 1.0,
        *,
        rows: int = 1,
        budget: float = LIMIT,
        tensors: dict[str, Any] | None = None,
        before: Callable[[Sent], None] | None = None,
        **more: Any,
    ) -> Sent:
        """One parcel whose numbers are all `value`. before(sent): called before it is sent."""
        self.number += 1
        sent: list[Sent] = []
        reply = self.mesh.bulk.expect(lambda message: sent[0].heard(message))
        features = Features(
            f"r{self.number}",
            INFO.model,
            INFO.version,
            more.pop("stage", self.path.stage),
            reply,
            0,
            tensors or {"x": np.full((rows, 4), value, np.float32)},
            host=self.mesh.lender.host,
            **more,
        )
        expires = asyncio.get_running_loop().time() + budget
        sent.append(Sent(Parcel(features, expires, lane=ANY, fast=self.path.fast)))
        if before is not None:
            before(sent[0])
        sent[0].sending = self.sender.send(sent[0].parcel, sent[0].on)
        return sent[0]

    async def stored(self) -> int:
        """Messages that the lanes hold now, unsettled ones included."""
        state = await self._stream()
        return int(state["messages"])

    async def ever_stored(self) -> int:
        """Messages that the lanes ever took."""
        state = await self._stream()
        return int(state["last_seq"])

    async def _stream(self) -> dict[str, Any]:
        await self.mesh.bulk.flush()
        stream = self.mesh.subjects.stream(INFO.model, INFO.version, self.path.stage)
        info = await jetstream.call(self.mesh.link, api("STREAM.INFO", stream))
        return dict(info["state"])

    async def emptied(self) -> None:
        """Until the lanes hold nothing: the server settles acknowledgements behind its answers."""
        await eventually(self._is_empty, "the lanes are empty")

    async def _is_empty(self) -> bool:
        return not await self.stored()

    async def quiet(self) -> None:
        """Until what is on its way, there and back, has come."""
        for mesh in (self.mesh, *self.receivers, self.mesh, *self.receivers):
            for link in {mesh.link, mesh.bulk}:
                if link.connected:
                    await link.flush()


def finish(delivery: Delivery) -> None:
    """The work is done, and a later lane has the result."""
    delivery.ack(True)


MakeRig = Callable[..., Awaitable[Rig]]
"""Makes a rig for a path; the fixture `rig`."""
needs_shared_memory = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))
