"""A node as an operating system process: event loop, signals, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nodes.event_loop import STOP_LIMIT, run_event_loop, stop_on_signals
from nodes.extras import missing_extra
from nodes.feature import MissingExtra, Start
from nodes.features import features, first
from nodes.health.service_manager import ServiceManager
from nodes.logs import LogForm, set_up_logging
from nodes.settings import WrongSetting
from shards.errors import ShardsError
from swarm.errors import InvalidArgument, SwarmError, Unauthenticated
from swarm.tasks import owned

if TYPE_CHECKING:
    from nodes.config import NodeConfig
    from nodes.life.node import Node
    from nodes.life.undecided import Undecided

log = logging.getLogger("swarm.node")

# What no restart mends ends with code 2, at which a service manager leaves the node alone.
LASTING = (Unauthenticated, MissingExtra, WrongSetting)

T = TypeVar("T")


def run_node(config: NodeConfig, started: float) -> int:
    """Run a node until it is told to stop; returns the exit code, 0 after a clean drain."""
    form = LogForm(config.verbose, config.log_json)
    set_up_logging(form, role=config.role, mesh=config.mesh)

    async def main() -> int:
        stop = stop_on_signals(_stop_limit(config))
        manager = ServiceManager.of(os.environ)
        told = [_print_line] if config.json_events else []
        told += [manager.changed] if manager is not None else []

        began = False  # it has reached its mesh

        def on_change(document: dict[str, Any]) -> None:
            nonlocal began
            began = began or document["event"] != "left"
            for tell in told:
                tell(document)

        code = 0
        try:
            async with managed(manager):
                decided = await _with_model(config, started, on_change, stop)
                if decided is not None:
                    await _live(decided, started, on_change, stop)
        except* (SwarmError, ShardsError) as group:
            for error in _leaves(group):
                print(f"swarm-node: {error}", file=sys.stderr)
                # Before it has reached its mesh nothing but a setting can be invalid.
                lasts = isinstance(error, LASTING if began else (*LASTING, InvalidArgument))
                code = max(code, 2 if lasts else 1)
        except* ModuleNotFoundError as group:
            for error in _leaves(group):
                missing = _missing(error)
                if missing is None:
                    raise
                print(f"swarm-node: {missing}", file=sys.stderr)
                code = 2
        return code

    try:
        return run_event_loop(main())
    finally:
        faulthandler.cancel_dump_traceback_later()


async def _with_model(
    config: NodeConfig,
    started: float,
    on_change: Callable[[dict[str, Any]], None],
    stop: asyncio.Event,
) -> NodeConfig | None:
    """The settings with a model, None when `stop` came first. Raises as `Undecided.decided`."""
    if not config.lacks_model:
        return config
    from nodes.life.undecided import Undecided

    undecided = Undecided(config, started, on_change)
    with endpoints_of(undecided):
        return await undecided.decided(stop)


async def _live(
    config: NodeConfig,
    started: float,
    on_change: Callable[[dict[str, Any]], None],
    stop: asyncio.Event,
) -> None:
    """A node's whole life: as a feature has it for such settings, else as its role is. Raises
    `SwarmError`, `ShardsError`."""
    from nodes.edge.edge import Edge, EdgeCounters
    from nodes.life.node import Node
    from shards.runtimes import run_limit

    run_limit.use(config.run_limit)
    if (life := first(lambda feature: feature.life(config))) is not None:
        await life(Start(config, started, on_change, stop))
    elif config.role == "edge":
        counters = EdgeCounters()
        node = Node(config, started, on_change, counters.status, stop.set)
        with endpoints_of(node):
            await Edge(node, config.edge, counters).run(stop)
    else:
        node = Node(config, started, on_change)
        collect_seldom()
        with endpoints_of(node):
            await node.run(stop)


def _stop_limit(config: NodeConfig) -> float:
    """Seconds from the first signal to stop: as for all nodes, unless a feature asks for more."""
    return max([STOP_LIMIT, *(each.leaves_within(config) for each in features())])


def collect_seldom() -> None:
    """Spare a node that serves the collector of garbage, from now on."""
    # Everything loaded so far lives as long as the node. Frozen, it is not walked by the garbage
    # collector (measured: 20-40 ms for a full collection).
    gc.collect()
    gc.freeze()
    # Requests make no reference cycles: look for them seldom.
    gc.set_threshold(20_000, 20, 50)


@contextlib.contextmanager
def endpoints_of(node: Node | Undecided) -> Iterator[None]:
    """Serve the node's figures to Prometheus, and its health to probes, where its settings say so.
    Raises `InvalidArgument`."""
    with contextlib.ExitStack() as stack:
        if node.config.metrics or node.config.health:
            _serve_endpoints(node, stack)
        yield


def _serve_endpoints(node: Node | Undecided, stack: contextlib.ExitStack) -> None:
    # Imported here: a node that nobody probes has no server.
    from nodes.health.endpoint import endpoint, probes
    from nodes.health.health import NodeHealth
    from nodes.place import ListenPlace

    def health() -> NodeHealth:
        return NodeHealth.of(node.status(), node.mesh.link.connected)

    pages = probes(asyncio.get_running_loop(), health)
    if node.config.health:
        stack.enter_context(endpoint(Path(node.config.health), pages))
    if not node.config.metrics:
        return
    served = {path: page for each in features() for path, page in each.pages(node).items()}
    where = ListenPlace.of(node.config.metrics)
    port = stack.enter_context(endpoint(where, {**served, **pages}))
    log.info("figures at http://%s", where.at(port))


@contextlib.asynccontextmanager
async def managed(manager: ServiceManager | None) -> AsyncIterator[None]:
    """Send the service manager signs of life meanwhile."""
    if manager is None:
        yield
        return
    try:
        async with owned(manager.run(), "signs of life"):
            yield
    finally:
        manager.close()


def _missing(error: BaseException) -> MissingExtra | None:
    return missing_extra(error, "this node") if isinstance(error, ImportError) else None


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors in a group, and in the groups in it."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def _print_line(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)
