"""The parts of one process that all of its senders and sources share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from swarm.fleet.placement import Placement
from swarm.link import Link
from swarm.samehost.host_socket import HostSocket
from swarm.samehost.lending import Lender
from swarm.subjects import Subjects
from swarm.transport.lane import Publisher
from swarm.wire.codec_choice import AUTO


def no_flaw(model: str, version: str) -> str:
    """Where nobody looks."""
    return ""


@dataclass(slots=True, eq=False)
class Routes:
    """What all senders and sources of one process share.

    placement: which nodes there are, and which of them on this host. look_out(), if any: it is
    worth knowing that soon. codec: the setting by which tensors are coded that go by the server
    (`swarm.wire.codec_choice.MODES`). clock: seconds. flaw(model, version): what is known to be
    wrong at the server with what the version needs there, in words; "" for nothing."""

    link: Link
    subjects: Subjects
    publisher: Publisher
    lender: Lender
    socket: HostSocket
    placement: Placement
    look_out: Callable[[], None] | None = None
    codec: str = AUTO
    clock: Callable[[], float] = time.monotonic
    flaw: Callable[[str, str], str] = no_flaw

    def over(self, link: Link, publisher: Publisher) -> Routes:
        """The same, over another connection of this process."""
        return replace(self, link=link, publisher=publisher)
