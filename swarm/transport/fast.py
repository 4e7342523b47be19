"""Fast mode: nothing is stored while requests are answered; the requester asks again for the rest.

A fast queue is a core NATS queue group, and on one host a datagram. A process that hangs keeps its
subscription: in one group with the nodes that cover for it, it would get every second message. So
the primaries' group and the cover's group each get all messages, and a stage takes each once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from swarm.errors import NoResponders, Status, SwarmError
from swarm.link import Link, LinkMessage
from swarm.samehost.host_socket import HostSocket
from swarm.subjects import Subjects
from swarm.transport.api import PUBLISHED, OnEvent, Refused
from swarm.transport.parcel import Parcel
from swarm.wire.hops import Hop
from swarm.wire.messages import Features, failure
from swarm.wire.tensors import Part

PRIMARIES, COVER = "stage", "cover"  # names of queue groups; nodes of other versions know them
MOST_WAITING = 64  # requests that may wait at a stage: no lane bounds them
# Messages of which the server may still say that nobody listens: it does within a round trip.
MOST_UNANSWERED = 256


@dataclass(slots=True, eq=False)
class FastSending:
    """One message of fast mode under way (a `Sending`)."""

    parcel: Parcel
    on: OnEvent
    over: bool = False

    def on_ack(self, verb: Part) -> None:
        """Nobody acks a message of fast mode."""

    def on_no_responders(self) -> None:
        if not self.over:
            self.over = True
            self.parcel.released()
            self.on(Refused(NoResponders("no node serves the next stage at present")))

    def answered(self, hops: tuple[Hop, ...]) -> None:
        self.over = True

    def drop(self) -> None:
        self.over = True


class FastSender:
    """Sends to one stage in fast mode. requests: for a requester, whose reply subject hears of
    messages that nobody takes; a stage hears of them itself, and tells the requester."""

    def __init__(
        self,
        link: Link,
        socket: HostSocket,
        subjects: Subjects,
        model: str,
        version: str,
        stage: int,
        *,
        requests: bool,
    ) -> None:
        self._link = link
        self._socket = socket
        self._stage = stage
        self._subject = subjects.fresh(model, version, stage)
        self._no_responders_inbox = ""
        self._sid = 0
        if not requests:
            # A name of this sender's own: the sender of another version counts from 0 too.
            self._no_responders_inbox = f"{link.server_inbox}.unheard{id(self):x}"
            self._sid = link.subscribe(f"{self._no_responders_inbox}.*", self._no_responders)
            link.on_denied.append(self._denied)
        self._count = 0
        self._sent: dict[str, Features] = {}  # by the subject on which the server would say so

    def send(self, parcel: Parcel, on: OnEvent, peer: str = "") -> FastSending:
        """Send to the process `peer` of this host, or to the queue groups."""
        sending = FastSending(parcel, on)
        if not peer:
            self._publish(sending)
            return sending
        try:
            parts = parcel.compact()
        except SwarmError as error:
            on(Refused(error))
            return sending
        self._socket.post(peer, self._subject, parts, partial(self._posted, sending))
        return sending

    def _posted(self, sending: FastSending, sent: bool) -> None:
        if sent:
            sending.on(PUBLISHED)  # to a request that was given up within the burst too: it cancels
        elif sending.over:
            sending.parcel.released()
        else:
            self._publish(sending)

    def _publish(self, sending: FastSending) -> None:
        features = sending.parcel.features
        try:
            parts = sending.parcel.encoded()
            reply = self._reply_for(features) if self._sid else features.reply
            self._link.publish(self._subject, parts, reply)
        except SwarmError as error:
            sending.on(Refused(error))
            return
        if self._sid:
            features.tensors = {}  # sent: a failure is answered without them
        sending.on(PUBLISHED)

    def _reply_for(self, features: Features) -> str:
        self._count += 1
        subject = f"{self._no_responders_inbox}.{self._count:x}"
        self._sent[subject] = features
        if len(self._sent) > MOST_UNANSWERED:
            del self._sent[next(iter(self._sent))]
        return subject

    def _no_responders(self, message: LinkMessage) -> None:
        """The server says so to the sender only, never to the requester that waits."""
        features = self._sent.pop(message.subject, None)
        if features is None or message.status != b"503":
            return
        text = f"no node serves stage {self._stage} at present"
        parts = failure(features, Status.UNAVAILABLE, text, self._stage, "")
        with contextlib.suppress(SwarmError):  # the requester asks again
            self._link.publish(features.reply, parts)

    def _denied(self, subject: str, error: SwarmError) -> None:
        """This user may not send to the next stage: the requesters are told at once."""
        if subject != self._subject:
            return
        for features in self._sent.values():
            parts = failure(features, error.status, str(error), self._stage, "")
            with contextlib.suppress(SwarmError):  # the requester's budget ends
                self._link.publish(features.reply, parts)
        self._sent.clear()

    def close(self) -> None:
        """Stop listening for messages that no node takes."""
        if self._sid:
            self._link.unsubscribe(self._sid)
            self._link.on_denied.remove(self._denied)


class FastMessage:
    """A message of fast mode as it came. Nothing is stored, so nothing is acknowledged."""

    __slots__ = ("age", "data", "direct", "received")

    def __init__(self, data: bytes | memoryview, received: int, sent: int = 0) -> None:
        """received, sent: ns of one clock; sent: 0 for a message that came by the server."""
        self.data = data
        self.direct = sent > 0
        self.received = received
        self.age = (self.received - sent) / 1e9 if sent else 0.0


class FastQueue:
    """The fast queue of one stage on one node. It is opened and closed at will: a node that covers
    for others opens it when it must."""

    def __init__(
        self,
        link: Link,
        socket: HostSocket,
        subject: str,
        group: str,
        on_message: Callable[[FastMessage], None],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """group: `PRIMARIES`, or `COVER`. now_ns(): nanoseconds, monotonic."""
        self._link = link
        self._socket = socket
        self._subject = subject
        self._group = group
        self._on_message = on_message
        self._now_ns = now_ns
        self._sid = 0

    @property
    def is_open(self) -> bool:
        return self._sid != 0

    def open(self) -> None:
        """Take messages."""
        if not self._sid:
            self._sid = self._link.subscribe(
                self._subject,
                self._from_server,
                self._group,
            )
            self._socket.listen(self._subject, self._from_this_host)

    def _from_server(self, message: LinkMessage) -> None:
        self._on_message(FastMessage(message.data, self._now_ns()))

    def _from_this_host(self, data: bytes, sent: int, _reply: str) -> None:
        self._on_message(FastMessage(data, self._now_ns(), sent))

    async def close(self) -> None:
        """Take no more messages; those that the server had sent still arrive."""
        sid, self._sid = self._sid, 0
        if sid:
            self._socket.forget(self._subject)
            await self._link.unsubscribe_and_drain(sid)
