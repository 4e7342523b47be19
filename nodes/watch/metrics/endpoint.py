"""The page that Prometheus scrapes, beside the probes of the same port."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from nodes.health.endpoint import Page, Pages, on_loop

Collect = Callable[[], Iterable[Metric]]


class _OnLoop(Collector):
    """Asks the event loop. `describe` tells nothing, so that registering asks nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, collect: Collect) -> None:
        self._loop = loop
        self._collect = collect

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return on_loop(self._loop, lambda: list(self._collect()))


def figures(collect: Collect) -> Pages:
    """The pages `/metrics` and, for any other path, the same: `collect()`, which runs on this event
    loop, and the figures of this process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OnLoop(asyncio.get_running_loop(), collect))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)

    def page(accept: str) -> Page:
        encode, kind = choose_encoder(accept)
        try:
            return Page(200, kind, encode(registry))
        except TimeoutError:
            return Page(503, "text/plain", b"the event loop does not turn\n")

    return {"/metrics": page, "*": page}
