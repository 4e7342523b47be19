"""What a parcel is promised by every way when its receiver dies or hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path as FilePath

import pytest
from contract import (
    LARGE,
    LIMIT,
    MakeRig,
    Path,
    Rig,
    finish,
    handed_over,
    needs_shared_memory,
    stored_or_handed,
    usual_end,
)

from swarm.fleet.priorities import FALLBACK
from swarm.transport.api import Acked, InFlight, Stored

pytestmark = needs_shared_memory

Victim = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def victim() -> AsyncIterator[Victim]:
    """A receiver in a process of its own; the sender knows it when it serves."""
    started: list[asyncio.subprocess.Process] = []

    async def start(r: Rig, point: str) -> asyncio.subprocess.Process:
        here = FilePath(__file__)
        paths = (here.parents[3], here.parents[2], here.parent)
        arguments = (r.url, r.name, str(r.path.stage), point, str(r.lanes.ack_wait))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(here.with_name("receiver_process.py")),
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
        )
        started.append(process)
        inbox = await said(process)
        if r.path.here:
            r.knows(inbox, "victim")
        return process

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def said(process: asyncio.subprocess.Process) -> str:
    """The next line of a process."""
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT):
        return (await process.stdout.readline()).decode().strip()


async def kill(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


@stored_or_handed
async def test_a_receiver_that_died_before_costs_a_parcel_no_more_than_its_lane_does(
    rig: MakeRig, path: Path, victim: Victim
) -> None:
    r = await rig(path)
    process = await victim(r, "taken")
    heir = await r.receiver("heir", FALLBACK)
    await kill(process)
    sent = r.send(5.0)
    assert await sent.event() == Stored(), "a process that has ended is noticed at once"
    (await heir.delivery()).ack(True)
    await r.emptied()
    assert heir.values[-1] == 5.0


@stored_or_handed
@pytest.mark.parametrize("point", ["taken", "answered"])
async def test_a_receiver_that_dies_with_a_parcel_in_hand_leaves_it_to_another(
    rig: MakeRig, path: Path, victim: Victim, point: str
) -> None:
    """Also one that has answered its requester, and has not said so."""
    r = await rig(path)
    process = await victim(r, point)
    heir = await r.receiver("heir", FALLBACK)
    heir.work = finish
    sent = r.send(5.0, rows=LARGE)
    assert await said(process) == point
    await kill(process)
    assert isinstance(await sent.final(), Stored)
    came = await heir.delivery()
    assert (came.features.id, heir.values) == ("r1", [5.0])
    assert came.intact(), "its memory was not handed back with the dead process"
    await r.emptied()
    assert len(sent.answers) == (point == "answered")


@pytest.mark.usefixtures("patient")
@stored_or_handed
async def test_a_receiver_that_dies_after_its_word_leaves_nothing_to_be_done_again(
    rig: MakeRig, path: Path, victim: Victim
) -> None:
    r = await rig(path)
    process = await victim(r, "done")
    heir = await r.receiver("heir", FALLBACK)
    sent = r.send(5.0)
    assert await said(process) == "done"
    await kill(process)
    assert isinstance(await sent.final(), usual_end(path))
    await r.emptied()
    await r.quiet()
    assert heir.came == []


@handed_over
async def test_a_receiver_that_is_stopped_keeps_a_parcel_no_longer_than_patience_lasts(
    rig: MakeRig, path: Path, victim: Victim
) -> None:
    r = await rig(path)
    process = await victim(r, "taken")
    heir = await r.receiver("heir", FALLBACK)
    process.send_signal(signal.SIGSTOP)
    sent = r.send(5.0)
    assert [await sent.event(), await sent.event()] == [InFlight(), Stored(late=True)]
    (await heir.delivery()).ack(True)
    process.send_signal(signal.SIGCONT)
    await r.emptied()
    assert heir.values[-1] == 5.0


@pytest.mark.usefixtures("patient")
@handed_over
async def test_a_receiver_whose_socket_is_gone_has_the_next_parcel_from_its_lane(
    rig: MakeRig, path: Path
) -> None:
    r = await rig(path)
    receiver = await r.receiver()
    first = r.send(1.0)
    (await receiver.delivery()).ack(True)
    assert isinstance(await first.final(), Acked)
    receiver.mesh.socket.close()
    second = r.send(2.0)
    assert second.events == [], "nobody has it yet but its lane"
    assert await second.event() == Stored()
    (await receiver.delivery()).ack(True)
    await r.emptied()
