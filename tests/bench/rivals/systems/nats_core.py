"""Raw nats-py, core NATS: publish from stage to stage, a queue group per stage, no storage.

A message to a dead stage is lost (at-most-once delivery). This floor shows the cost of the bus.
"""

from __future__ import annotations

import sys
from typing import Any

from bench.rivals.stage import Stage
from bench.rivals.systems.raw_nats import NatsContender, serve, subject


class NatsCore(NatsContender):
    """The reply subject travels with the message; the last stage publishes to it."""

    module = __name__

    async def send(self, token: str, reply: str, payload: bytes | memoryview) -> None:
        await self._nc.publish(subject(1), payload, reply=reply)


async def attach(connection: Any, stage: Stage, number: int) -> None:
    """Subscribe one stage."""
    following = subject(number + 1)

    async def on_message(message: Any) -> None:
        data = stage.run_bytes(message.data)
        if stage.last:
            await connection.publish(message.reply, data)
        else:
            await connection.publish(following, data, reply=message.reply)

    await connection.subscribe(
        subject(number), queue=f"stage-{number}", cb=on_message, pending_bytes_limit=1 << 30
    )


if __name__ == "__main__":
    serve(attach, sys.argv[1:])
