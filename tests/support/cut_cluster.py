"""A cluster of three servers in a network that can be cut in two: two here, one behind the link.

Each half has its own server to speak to, and nodes of the half know no other one. The two servers
of this half are a quorum: desired state can be written here, and nowhere else, while it is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from nodes.up.embedded_cluster import cluster_lines, elected, free_ports
from nodes.up.embedded_server import EmbeddedServer
from support.cut_link import CutLink, cut_link
from support.slow_link import enter
from swarm.link import LinkOptions

ENDS_WITHIN = 30.0  # seconds that work behind the link may take to end


@dataclass(frozen=True)
class CutCluster:
    """near, far: the URLs of the servers on each side."""

    near: str
    far: str
    link: CutLink


@asynccontextmanager
async def cut_cluster() -> AsyncIterator[CutCluster]:
    """Start it, and wait for its leader; all ends with the block. Raises `Unavailable`."""
    async with contextlib.AsyncExitStack() as stack:
        link = stack.enter_context(cut_link())
        inside = ("ip", "netns", "exec", link.node_namespace)
        hosts = [link.server_address, link.server_address, link.node_address]
        ports = free_ports(len(hosts))
        routes = [f"nats://{host}:{port}" for host, port in zip(hosts, ports, strict=True)]
        servers = [
            EmbeddedServer(
                host=host,
                more=cluster_lines("cut", port, routes, host=host),
                inside=inside if host == link.node_address else (),
            )
            for host, port in zip(hosts, ports, strict=True)
        ]
        for server in servers:
            await stack.enter_async_context(server)
        urls = [server.url for server in servers]
        await elected(LinkOptions(servers=urls))
        yield CutCluster(",".join(urls[:2]), urls[2], link)


@contextmanager
def behind(namespace: str, work: Callable[[asyncio.Event], Awaitable[None]]) -> Iterator[None]:
    """Run `work` in an event loop of its own behind the link while the block lasts: its thread
    lives in that namespace, and so does each socket that it makes. work(over): ends when `over` is
    set. Raises what it raises."""
    started, failed = threading.Event(), list[BaseException]()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def main() -> None:
        over = asyncio.Event()
        loops.append((asyncio.get_running_loop(), over))
        started.set()
        await work(over)

    def run() -> None:
        try:
            with Path(f"/run/netns/{namespace}").open("rb") as file:
                enter(file.fileno())
            asyncio.run(main())
        except BaseException as error:  # told to the thread that waits
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=run, name=f"behind {namespace}")
    thread.start()
    started.wait()
    try:
        yield
    finally:
        for loop, over in loops:
            with contextlib.suppress(RuntimeError):  # its loop has ended by itself
                loop.call_soon_threadsafe(over.set)
        thread.join(ENDS_WITHIN)
    if failed:
        raise failed[0]
