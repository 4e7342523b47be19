"""`swarm top` in a real terminal of 80x24, over a real server; the nodes only speak."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest
from fleets import publish_event, publish_status
from statuses import a_status
from support.commands import environment
from support.waiting import GENEROUS

from swarm.link import Link

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

LINES, COLUMNS = 24, 80


def command(nats: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "nodes.cli.main", "top", "--nats", nats, *arguments]


@dataclass
class Terminal:
    """A process in a terminal; `written` is what it drew so far."""

    process: subprocess.Popen[bytes]
    side: int
    written: bytearray = field(default_factory=bytearray)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def read(self) -> None:
        with contextlib.suppress(OSError):  # the process has ended
            self.written += os.read(self.side, 1 << 16)
            self.news.set()

    async def draws(self, words: str) -> None:
        """Wait until the words were drawn, on from the last such call."""
        try:
            async with asyncio.timeout(GENEROUS):
                while words.encode() not in self.written:
                    self.news.clear()
                    await self.news.wait()
        except TimeoutError:
            raise AssertionError(f"{words!r} was not drawn, but {bytes(self.written)!r}") from None
        del self.written[: self.written.index(words.encode())]

    def press(self, keys: bytes) -> None:
        os.write(self.side, keys)

    async def ended(self) -> int:
        return await asyncio.to_thread(self.process.wait, GENEROUS)


@contextlib.contextmanager
def terminal(nats: str, *arguments: str) -> Iterator[Terminal]:
    side, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    process = subprocess.Popen(
        command(nats, *arguments),
        stdin=other,
        stdout=other,
        stderr=other,
        env=environment({"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}),
        start_new_session=True,
    )
    os.close(other)
    made = Terminal(process, side)
    loop = asyncio.get_running_loop()
    loop.add_reader(side, made.read)
    try:
        yield made
    finally:
        loop.remove_reader(side)
        if process.poll() is None:
            process.kill()
            process.wait(5)
        os.close(side)


def url_of(link: Link) -> str:
    return link.options.servers[0]


@contextlib.asynccontextmanager
async def speaking(link: Link, *nodes: str) -> AsyncIterator[None]:
    """Nodes that say their status twice a second."""

    async def speak() -> None:
        while True:
            for number, node in enumerate(nodes):
                publish_status(link, a_status(node, (number + 1,)))
            await asyncio.sleep(0.5)  # the pace of the nodes

    task = asyncio.create_task(speak())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_terminal_shows_nodes_and_a_takeover_takes_keys_and_is_given_back(
    link: Link,
) -> None:
    with terminal(url_of(link)) as top:
        async with speaking(link, "shard-1-aaaa", "shard-2-bbbb"):
            await top.draws("2 nodes")
            await top.draws("digits is served by nodes, and the server lists no model")
            publish_event(link, "took-over", "shard-2-bbbb", stage=1)
            await top.draws("took-over")
            top.press(b"/BBBB\r")  # as fast as a terminal can
            await top.draws("1 of 2 nodes")
            top.press(b"\r")
            await top.draws("pi-1 pid 4711")
            top.process.send_signal(signal.SIGTERM)
            assert await top.ended() == 0
            await top.draws("\x1b[?1049l")  # the terminal is as it was before


async def test_once_prints_the_table_of_swarm_status(link: Link) -> None:
    async with speaking(link, "shard-1-aaaa"):
        once = await asyncio.create_subprocess_exec(
            *command(url_of(link), "--once"),
            stdout=subprocess.PIPE,
            env=environment({"TERM": "xterm-256color"}),
        )
        told, _ = await asyncio.wait_for(once.communicate(), GENEROUS)
        assert once.returncode == 3, "the server lists no model, and a node serves one"
        assert "shard-1" in told.decode()
        assert "\x1b" not in told.decode()
