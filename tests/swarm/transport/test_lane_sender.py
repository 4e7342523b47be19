"""What a sender keeps of a parcel of which nobody knows whether the lane has it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from support.fake_link import FakeLink

from swarm.link import LinkMessage
from swarm.samehost.lending import Lender
from swarm.samehost.memory import MIN_BYTES, sweep, unavailable
from swarm.transport.api import Event, Refused
from swarm.transport.lane import Publisher
from swarm.transport.lane_sender import LaneSender
from swarm.transport.parcel import Parcel
from swarm.wire.messages import Features

pytestmark = [
    pytest.mark.simulated,
    pytest.mark.skipif(unavailable() is not None, reason=str(unavailable())),
]
REFUSALS = {
    "no lane": LinkMessage("", "", b"NATS/1.0 503\r\n\r\n", b""),
    "full": LinkMessage("", "", None, b'{"error": {"code": 503, "err_code": 10077}}'),
}


@pytest.mark.parametrize("what", ["silence", "a lost connection", *REFUSALS])
async def test_memory_of_a_parcel_is_free_only_where_the_server_has_refused_it(what: str) -> None:
    link = FakeLink()
    publisher = Publisher(link, asyncio.get_running_loop().time)
    lender = Lender(link, "lane-sender")
    array = np.zeros(MIN_BYTES // 4, np.float32)
    parcel = Parcel(Features("r1", "m", "1", 1, "", 0, {"x": array}), 2000.0)
    parcel.lend(lender)
    assert parcel.loan.alive
    events: list[Event] = []
    LaneSender(publisher).send("lane", parcel, events.append)
    if what in REFUSALS:
        link.deliver(replace(REFUSALS[what], subject=link.replies[0]))
    elif what == "silence":
        await asyncio.sleep(60.0)
    else:
        for down in list(link.on_down):
            down()
    (event,) = events
    assert isinstance(event, Refused)
    parcel.loan.take_back()
    assert parcel.loan.alive is event.may_be_stored is (what not in REFUSALS)
    publisher.close()
    await lender.close(0.0)
    sweep("lane-sender")
