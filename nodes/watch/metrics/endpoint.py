"""An HTTP endpoint that Prometheus scrapes. It has a thread of its own: no request waits for it."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from swarm.errors import InvalidArgument

LOOPBACK = "127.0.0.1"
SNAPSHOT_TIMEOUT = 2.0  # seconds in which the event loop tells what is known

Collect = Callable[[], Iterable[Metric]]


@dataclass(frozen=True, slots=True)
class Where:
    """An address and a port; port 0 for a free one."""

    address: str
    port: int

    @classmethod
    def of(cls, text: str) -> Where:
        """Of `PORT`, on loopback alone, or `ADDRESS:PORT`. Raises `InvalidArgument`."""
        address, colon, port = text.rpartition(":")
        address = address.strip("[]")
        if not (port.isascii() and port.isdigit() and int(port) < 65536) or (colon and not address):
            raise InvalidArgument(
                f"{text!r} is no place to listen: give PORT, for this machine alone, or "
                "ADDRESS:PORT"
            )
        return cls(address or LOOPBACK, int(port))


class _OnLoop(Collector):
    """Asks the event loop, whose objects no other thread may walk. `describe` tells nothing, so
    that registering asks nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, collect: Collect) -> None:
        self._loop = loop
        self._collect = collect

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        told: concurrent.futures.Future[list[Metric]] = concurrent.futures.Future()

        def tell() -> None:
            try:
                told.set_result(list(self._collect()))
            except Exception as error:
                told.set_exception(error)  # the scrape fails with it

        self._loop.call_soon_threadsafe(tell)
        return told.result(SNAPSHOT_TIMEOUT)


@contextmanager
def endpoint(where: Where, collect: Collect) -> Iterator[int]:
    """Serve `collect()`, which runs on this event loop, and the figures of this process; gives the
    port. Raises `InvalidArgument` where nobody may listen there."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OnLoop(asyncio.get_running_loop(), collect))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    try:
        server, thread = start_http_server(where.port, where.address, registry)
    except OSError as error:
        raise InvalidArgument(
            f"metrics on {where.address}:{where.port}: {error.strerror or error}: "
            "choose another port"
        ) from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(SNAPSHOT_TIMEOUT)
