"""A program that holds connections of a server open, and sends next to nothing on each.

    python -m bench.gateway.slow_senders PORT COUNT

It opens COUNT connections, writes `open` on standard output, and sends each a byte of a header
every second. A connection that the server ends is opened again. It runs until it is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

BEGUN = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: localhost\r\nx-slow: "
EVERY = 1.0  # seconds between two bytes


async def slow(port: int, opened: asyncio.Semaphore) -> None:
    """One connection after the other."""
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(writer):
                writer.write(BEGUN)
                opened.release()
                while not writer.transport.is_closing():
                    await asyncio.sleep(EVERY)  # the pace of the attack
                    writer.write(b"x")
                    await writer.drain()
        await asyncio.sleep(EVERY)


async def main(port: int, count: int) -> None:
    opened = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(slow(port, opened))
        for _ in range(count):
            await opened.acquire()
        print("open", flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
