"""The parts of one process that all of its senders and sources share."""

from __future__ import annotations

from collections.abc import Callable

from swarm.fleet.placement import Placement
from swarm.lanes import Publisher
from swarm.link import Link
from swarm.local.host_socket import HostSocket
from swarm.local.lending import Lender
from swarm.subjects import Subjects


class Routes:
    """What all senders and sources of one process share.

    placement: which nodes of a stage are on this host. on_large(), if any: a message with large
    tensors is about to be sent."""

    __slots__ = ("lender", "link", "on_large", "placement", "publisher", "socket", "subjects")

    def __init__(
        self,
        link: Link,
        subjects: Subjects,
        publisher: Publisher,
        lender: Lender,
        socket: HostSocket,
        placement: Placement,
        on_large: Callable[[], None] | None = None,
    ) -> None:
        self.link = link
        self.subjects = subjects
        self.publisher = publisher
        self.lender = lender
        self.socket = socket
        self.placement = placement
        self.on_large = on_large
