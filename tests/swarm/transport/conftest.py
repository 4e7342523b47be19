"""A sender and its receivers on a real server, for each way that a parcel can go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from contract import MakeRig, Path, Rig
from support.handover import change_handover

from nodes.up.embedded_server import EmbeddedServer
from swarm.transport.handover import receiver
from swarm.transport.lane import LaneOptions


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders wait for an ack as long as it takes, and receivers take what lay long in the socket,
    as on a busy machine. (How long: test_handover_policy, test_handover_receiver.)"""
    change_handover(monkeypatch, least_patience=3600.0, most_patience=3600.0, silent_least=3600.0)
    monkeypatch.setattr(receiver, "STALE_AFTER", 3600 * 10**9)


@pytest.fixture
async def rig(server: EmbeddedServer) -> AsyncIterator[MakeRig]:
    """Makes a rig: `await rig(path, **lane_options)`."""
    async with AsyncExitStack() as stack:

        async def make(path: Path, **lanes: float) -> Rig:
            options = LaneOptions(**{"depth": 64, "ack_wait": 0.2} | lanes)  # type: ignore[arg-type]
            return await stack.enter_async_context(Rig(server.url, path, options))

        yield make
