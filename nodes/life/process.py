"""A node as an operating system process: event loop, signals, exit code."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from nodes.life.logs import LogForm, set_up_logging
from shards.errors import ShardsError
from swarm.errors import InvalidArgument, SwarmError, Unauthenticated

if TYPE_CHECKING:
    from nodes.life.config import NodeConfig
    from nodes.life.edge import EdgeOptions
    from nodes.life.node import Node

log = logging.getLogger("swarm.node")

T = TypeVar("T")

SUPERVISOR = "SWARM_PARENT_PID"  # in the environment of a node: its supervisor's process
STOP_LIMIT = 12.0  # seconds; a drain takes eight at the most


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on uvloop where there is one (measured: a hop is a third cheaper on it)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def stop_on_signals(limit: float = 0.0) -> asyncio.Event:
    """An event that SIGTERM and SIGINT set; a second signal ends the process at once.

    limit: seconds from the first signal after which the process prints where each thread is and
    exits with 1, even if it still waits; 0: never.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            raise SystemExit(130)
        stop.set()
        if limit:
            faulthandler.dump_traceback_later(limit, exit=True)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    return stop


def end_with_supervisor() -> None:
    """Let the kernel end this process by SIGKILL when its supervisor ends; a node that hangs would
    outlive any other signal. A node without a supervisor is left alone."""
    from swarm.services.embedded import die_with_parent

    parent = os.environ.pop(SUPERVISOR, "")
    if parent and sys.platform == "linux":
        die_with_parent(signal.SIGKILL)
        if os.getppid() != int(parent):
            raise SystemExit(0)  # the supervisor has ended already


def run_node(
    config: NodeConfig, edge: EdgeOptions, form: LogForm, json_events: bool, started: float
) -> int:
    """Run a node until it is told to stop; returns the exit code, 0 after a clean drain."""
    # Imported here: the clients' commands use this module's event loop, but no node.
    from nodes.life.edge import Edge, EdgeCounters
    from nodes.life.node import Node

    set_up_logging(form, role=config.role, mesh=config.mesh)

    async def main() -> int:
        stop = stop_on_signals(STOP_LIMIT)
        on_change = _print_line if json_events else _print_nothing
        code = 0
        try:
            if config.role == "edge":
                counters = EdgeCounters()
                node = Node(config, started, on_change, counters.status, stop.set)
                with metrics_of(node):
                    await Edge(node, edge, counters).run(stop)
            else:
                node = Node(config, started, on_change)
                # Everything loaded so far lives as long as the node. Frozen, it is not walked by
                # the garbage collector (measured: 20-40 ms for a full collection).
                gc.collect()
                gc.freeze()
                # Requests make no reference cycles: look for them seldom.
                gc.set_threshold(20_000, 20, 50)
                with metrics_of(node):
                    await node.run(stop)
        except* (SwarmError, ShardsError) as group:
            for error in _leaves(group):
                print(f"swarm-node: {error}", file=sys.stderr)
                code = max(code, 2 if isinstance(error, Unauthenticated) else 1)
        return code

    try:
        return run_event_loop(main())
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextlib.contextmanager
def metrics_of(node: Node) -> Iterator[None]:
    """Serve the node's figures to Prometheus, where its settings say so. Raises
    `InvalidArgument`."""
    if not node.config.metrics:
        yield
        return
    try:
        from nodes.metrics.endpoint import Where, endpoint
        from nodes.metrics.families import Families, Told
    except ModuleNotFoundError as error:
        text = f"--metrics-port: {error}: pip install 'swarm-mesh[metrics]'"
        raise InvalidArgument(text) from None

    def collect() -> Families:
        status, families = node.status(), Families()
        families.add(Told(node.id, status, status["state"]))
        return families

    where = Where.of(node.config.metrics)
    with endpoint(where, collect) as port:
        log.info("metrics at http://%s:%d/metrics", where.address, port)
        yield


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors in a group, and in the groups in it."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def _print_line(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def _print_nothing(document: dict[str, Any]) -> None:
    """Changes of state are in the log, and in the status documents."""
