"""What the tests against a real nats-server share."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from support.waiting import GENEROUS, eventually

from nodes.up.embedded_server import EmbeddedServer
from swarm.link import Link, LinkMessage, LinkOptions


async def hang(server: EmbeddedServer) -> None:
    """Stop the server's process; returns when each of its threads has stopped."""
    os.kill(server.pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{server.pid}/task")

    def stopped() -> bool:
        return all(
            stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in tasks.glob("*/stat")
        )

    await eventually(stopped, what="the stop of the server")


def resume(server: EmbeddedServer) -> None:
    os.kill(server.pid, signal.SIGCONT)


def cut(link: Link) -> None:
    """Cut a link's connection, as a router that fails does; the link connects again."""
    assert link.gather.transport is not None
    link.gather.transport.abort()


class Links:
    """Opens links, and servers for them, and ends them all, the servers last."""

    def __init__(self) -> None:
        self._open: list[tuple[Link, asyncio.Task[None]]] = []
        self._servers = AsyncExitStack()

    async def server(self, more: str = "", **options: Any) -> EmbeddedServer:
        """A server of one's own. more: lines of its configuration, such as users, or TLS."""
        return await self._servers.enter_async_context(EmbeddedServer(more=more, **options))

    def start(self, *urls: str, **options: object) -> Link:
        """A link that runs, connected or not."""
        link = Link(LinkOptions(servers=urls, **options))  # type: ignore[arg-type]
        self._open.append((link, asyncio.get_running_loop().create_task(link.run())))
        return link

    async def connect(self, *urls: str, **options: object) -> Link:
        link = self.start(*urls, **options)
        await link.ready(GENEROUS)
        return link

    def running(self, link: Link) -> bool:
        return next(not task.done() for other, task in self._open if other is link)

    async def crash(self, link: Link) -> None:
        """End a link as a killed process ends: at once, nothing is sent any more."""
        for other, task in self._open:
            if other is link:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        for link, task in self._open:
            await link.close()
            task.cancel()
        results = await asyncio.gather(*(task for _, task in self._open), return_exceptions=True)
        failures = [r for r in results if isinstance(r, Exception)]
        await self._servers.aclose()
        assert not failures, f"a link ended by an exception: {failures}"


class Inbox(list[LinkMessage]):
    """A callback that keeps what it gets."""

    def __call__(self, message: LinkMessage) -> None:
        self.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [bytes(message.data) for message in self]
