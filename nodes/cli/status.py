"""`swarm status` and `swarm top`: the status documents of all nodes, as a table."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.live import Live
from rich.table import Table

import swarm
from nodes.console import out, print_json, with_mesh
from nodes.life.process import stop_on_signals
from swarm.link import LinkMessage
from swarm.link.denials import Denial

LISTEN = 0.5  # seconds; every node answers a status request at once
LAST_NOTES = 4  # events of the server that are shown
NOTE_LISTS = ("lost", "kept", "restored")  # of an event of the server
FORGET_AFTER = 5.0  # seconds of silence after which a node is shown as silent


class StatusBoard:
    """The last status document of each node of a mesh, and the moment at which it came.

    server: the last word of an embedded server's supervisor; None where there is none.
    Raises `PermissionDenied` where this user may not hear them.
    """

    def __init__(self, mesh: swarm.Mesh) -> None:
        self.statuses: dict[str, dict[str, Any]] = {}
        self.heard: dict[str, float] = {}
        self.server: dict[str, Any] | None = None
        if not mesh.link.grants.may_subscribe(mesh.subjects.status_all):
            raise Denial(False, mesh.subjects.status_all).error()
        mesh.link.subscribe(mesh.subjects.status_all, self._take)
        mesh.link.subscribe(mesh.subjects.server, self._take_server)

    def _take_server(self, message: LinkMessage) -> None:
        with contextlib.suppress(ValueError, TypeError):  # a foreign message: nothing to show
            document = json.loads(bytes(message.data))
            server_lines(document)
            self.server = document

    def _take(self, message: LinkMessage) -> None:
        try:
            doc = json.loads(bytes(message.data))
            node = str(doc["node"])
        except (ValueError, KeyError, TypeError):
            return  # a foreign message: nothing to show
        self.statuses[node] = doc
        self.heard[node] = time.monotonic()

    def table(self) -> Table:
        """One row for each node, by role."""
        table = new_table()
        now = time.monotonic()
        for node, status in sorted(self.statuses.items(), key=lambda item: item[1]["role"]):
            silent = now - self.heard[node] > FORGET_AFTER and status["state"] != "left"
            table.add_row(*status_row(status, silent))
        return table


def server_lines(server: dict[str, Any]) -> list[str]:
    """What an embedded server's document says, for people. Raises `TypeError`, `ValueError` where
    it says nothing of the kind."""
    try:
        store = server["store"]
        lines = [
            f"server {server['url']} is {server['state']}, pid {server['pid']}, started again "
            f"{int(server['restarts'])} times, store {store['state']} "
            f"({int(store['free_bytes']) >> 20} MiB free)"
        ]
        for note in server["notes"][-LAST_NOTES:]:
            words = [f"{word}: {', '.join(note[word])}" for word in NOTE_LISTS if note.get(word)]
            lines.append("; ".join([f"  {note['at']} {note['kind']}: {note['detail']}", *words]))
    except (KeyError, AttributeError) as error:
        raise ValueError(f"no document of a server: {error!r}") from None
    return lines


def new_table() -> Table:
    """The columns of `status_row`; readable on 80 columns."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("role", no_wrap=True)
    table.add_column("node", overflow="fold", min_width=8)
    table.add_column("state", no_wrap=True)
    table.add_column("model", overflow="fold")
    for heading in ("served", "failed", "waiting", "compute ms\np50/p99", "queue ms\np50/p99"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("RSS\nMB", justify="right")
    return table


def status_row(status: dict[str, Any], silent: bool = False) -> list[str]:
    """One node's row; a node with several stages shows the sums and the worst latencies of them."""
    stages = status.get("stages", [])
    served = sum(s["counters"]["served"] for s in stages)
    failed = sum(s["counters"]["failed"] for s in stages)
    edge = status.get("edge")
    if edge:
        served, failed = edge["answered"], edge["failed"]
    state = "silent" if silent else status["state"]
    color = {"ready": "green", "silent": "red", "failed": "red", "left": "dim"}.get(state, "yellow")

    def worst(key: str) -> str:
        p50 = max((s[key]["p50"] for s in stages), default=0.0)
        p99 = max((s[key]["p99"] for s in stages), default=0.0)
        return f"{p50:.2f}/{p99:.2f}" if stages else "-"

    return [
        status["role"],
        status["node"],
        f"[{color}]{state}[/]",
        f"{status['model']}@{status['version']}" if status["model"] else "-",
        str(served),
        str(failed),
        str(status["queue_depth"]),
        worst("compute_ms"),
        worst("queue_ms"),
        f"{status['rss_bytes'] / 1e6:.0f}",
    ]


def run_status(nats: str, mesh: str, as_json: bool) -> int:
    """`swarm status`; returns its exit code, 1 where no node answers."""

    async def work(client: swarm.Mesh) -> int:
        board = StatusBoard(client)
        client.link.publish(client.subjects.status_request)
        await asyncio.sleep(LISTEN)
        if as_json:
            doc: dict[str, Any] = {"mesh": mesh, "nodes": list(board.statuses.values())}
            print_json(doc | ({"server": board.server} if board.server else {}))
        elif board.statuses:
            out.print(board.table())
            for line in server_lines(board.server) if board.server else ():
                out.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            out.print(f"no node speaks in mesh {mesh!r}: swarm up, or swarm-node --role shard-1 …")
        return 0 if board.statuses else 1

    return with_mesh(nats, mesh, as_json, work)


def run_top(nats: str, mesh: str) -> int:
    """`swarm top`, until Ctrl-C; returns its exit code."""

    async def work(client: swarm.Mesh) -> int:
        stop = stop_on_signals()
        board = StatusBoard(client)
        with Live(board.table(), console=out, refresh_per_second=4) as live:
            while not stop.is_set():
                try:
                    await asyncio.wait_for(stop.wait(), 0.5)
                except TimeoutError:
                    live.update(board.table())
        return 0

    return with_mesh(nats, mesh, False, work)
