"""Raw nats-py, JetStream pull: the work queue of `nats_jetstream`, consumed by a standing pull.

One long pull request is always parked on the server and topped up at low water, so a message
arrives as fast as with push, with flow control for each client. The pull is renewed when it
expires, when it fails, and when heartbeats stop.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from bench.rivals.stage import Stage
from bench.rivals.systems.nats_jetstream import Forwarder, NatsJetStream
from bench.rivals.systems.raw_nats import STREAM, serve, subject

PULL_BATCH = 64
"""Messages that a pull asks for."""
PULL_EXPIRES_S = 30.0
HEARTBEAT_S = 1.0


class NatsPull(NatsJetStream):
    """Requester and stream are those of `NatsJetStream`; the stages pull."""

    module = __name__


class StandingPull:
    """Keeps between ``PULL_BATCH / 2`` and ``PULL_BATCH`` messages asked for."""

    def __init__(self, connection: Any, forwarder: Forwarder, consumer: str) -> None:
        self._connection = connection
        self._forwarder = forwarder
        self._target = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{consumer}"
        self._inbox = connection.new_inbox()
        self._asked = 0
        self._heard = time.monotonic()
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Subscribe, park the first pull and watch it from now on."""
        await self._connection.subscribe(
            self._inbox, cb=self._on_message, pending_bytes_limit=1 << 30
        )
        await self._top_up()
        self._watching = asyncio.create_task(self._watch(), name="standing pull")

    async def _watch(self) -> None:
        """Pull again when nothing, not even a heartbeat, was heard for a while."""
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            if time.monotonic() - self._heard > 3 * HEARTBEAT_S:
                self._asked = 0
                self._heard = time.monotonic()
                await self._top_up()

    async def _on_message(self, message: Any) -> None:
        self._heard = time.monotonic()
        headers = message.headers or {}
        status = headers.get("Status")
        if status is None:
            self._asked -= 1
            await self._forwarder.on_message(message)
        elif status != "100":
            # 404, 408, 409: this pull is over; the messages that it still asked for will not come.
            self._asked -= int(headers.get("Nats-Pending-Messages", self._asked))
        await self._top_up()

    async def _top_up(self) -> None:
        if self._asked > PULL_BATCH // 2:
            return
        pull = {
            "batch": PULL_BATCH - self._asked,
            "expires": int(PULL_EXPIRES_S * 1e9),
            "idle_heartbeat": int(HEARTBEAT_S * 1e9),
        }
        self._asked = PULL_BATCH
        await self._connection.publish(self._target, json.dumps(pull).encode(), reply=self._inbox)


async def attach(connection: Any, stage: Stage, number: int) -> StandingPull:
    """Create one stage's durable pull consumer and keep a pull parked on it."""
    from nats.js.api import AckPolicy, ConsumerConfig

    name = f"stage-{number}"
    await connection.jetstream().add_consumer(
        STREAM,
        ConsumerConfig(
            durable_name=name,
            filter_subject=subject(number),
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=30.0,
            max_waiting=8,
        ),
    )
    pull = StandingPull(connection, Forwarder(connection, stage, number), name)
    await pull.start()
    return pull


if __name__ == "__main__":
    serve(attach, sys.argv[1:])
