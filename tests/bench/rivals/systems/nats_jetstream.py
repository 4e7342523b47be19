"""Raw nats-py, JetStream push: a work queue in memory, one deliver group per stage.

No hop loses a message: a stage publishes to the next stage with ``Nats-Msg-Id``, awaits the PubAck,
then acks. The stage computes the next message while it waits for the PubAck.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from bench.rivals.stage import Stage
from bench.rivals.systems.raw_nats import STREAM, NatsContender, serve, subject

REPLY = "Reply"
MESSAGE_ID = "Nats-Msg-Id"
PUBACK_TIMEOUT = 5.0
"""Seconds until the server must have stored a message."""


class NatsJetStream(NatsContender):
    """The reply subject travels in a header: JetStream uses the message's own one for acks."""

    module = __name__

    async def prepare(self) -> None:
        from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

        self._js = self._nc.jetstream()
        await self._js.add_stream(
            StreamConfig(
                name=STREAM,
                subjects=[subject(number + 1) for number in range(self.workload.stages)],
                retention=RetentionPolicy.WORK_QUEUE,
                storage=StorageType.MEMORY,
                discard=DiscardPolicy.NEW,
                max_bytes=512 * 1024 * 1024,
                duplicate_window=30.0,
            )
        )

    async def send(self, token: str, reply: str, payload: bytes | memoryview) -> None:
        headers = {MESSAGE_ID: f"{token}/1", REPLY: reply}
        await (await self._js.publish_async(subject(1), payload, headers=headers))


class Forwarder:
    """Runs a stage on each message, publishes the result, and acks once the result is stored."""

    def __init__(self, connection: Any, stage: Stage, number: int) -> None:
        self._connection = connection
        self._js = connection.jetstream()
        self._stage = stage
        self._number = number
        self._settling: set[asyncio.Task[None]] = set()

    async def on_message(self, message: Any) -> None:
        """The subscription's callback."""
        data = self._stage.run_bytes(message.data)
        reply = message.headers[REPLY]
        if self._stage.last:
            await self._connection.publish(reply, data)
            await message.ack()
            return
        following = self._number + 1
        headers = {MESSAGE_ID: f"{reply.rpartition('.')[2]}/{following}", REPLY: reply}
        stored = await self._js.publish_async(subject(following), data, headers=headers)
        task = asyncio.create_task(self._settle(stored, message))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle(self, stored: asyncio.Future[Any], message: Any) -> None:
        """Ack the message once the next stage's queue holds its result; nak it when that fails."""
        try:
            await asyncio.wait_for(stored, PUBACK_TIMEOUT)
        except Exception as error:
            print(f"not stored: {error!r}", file=sys.stderr)
            await message.nak()
        else:
            await message.ack()


async def attach(connection: Any, stage: Stage, number: int) -> None:
    """Create one stage's durable push consumer and subscribe to it."""
    from nats.js.api import AckPolicy, ConsumerConfig

    await connection.jetstream().subscribe(
        subject(number),
        stream=STREAM,
        queue=f"stage-{number}",
        durable=f"stage-{number}",
        cb=Forwarder(connection, stage, number).on_message,
        manual_ack=True,
        config=ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=30.0),
        pending_bytes_limit=1 << 30,
    )


if __name__ == "__main__":
    serve(attach, sys.argv[1:])
