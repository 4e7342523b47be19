"""`swarm status` and `swarm top`: what the status documents of all nodes say."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rich.live import Live
from rich.table import Table

import swarm
from nodes.cli.status_table import node_view, one_line, served, status_table
from nodes.console import out, print_json, with_mesh
from nodes.life.process import stop_on_signals
from swarm.fleet.picture import (
    MOST_NODES,
    RATE_COUNTS,
    RATE_LEAST,
    FleetNode,
    FleetPicture,
    rate_of,
)
from swarm.flow.objective import Objective
from swarm.link import LinkMessage
from swarm.link.denials import Denial
from swarm.services.fleet import FleetWatch

LISTEN = 0.5  # seconds; every node answers a status request at once
SPOKEN_WITHIN = 1.3  # seconds; by then every node has said its status by itself
SMALL_FLEET = 32  # nodes that are asked to speak at once; more of them would be a storm
NO_DOCUMENT = (ValueError, TypeError, ArithmeticError, RecursionError)  # of a foreign message
LAST_NOTES = 4  # events of the server that are shown
NOTE_LISTS = ("lost", "kept", "restored")  # of an event of the server
FORGET_AFTER = 5.0  # seconds of silence after which a node is shown as silent


MOST_SERVERS = 64  # supervisors whose words are kept


class StatusBoard:
    """The last status document of each node of a mesh, and the moment at which it came. Of more
    nodes than the picture of a fleet has, those that spoke first stay for as long as they speak.

    servers: the last word of embedded servers' supervisors, by URL.
    Raises `PermissionDenied` where this user may not hear them.
    """

    def __init__(self, mesh: swarm.Mesh) -> None:
        self.statuses: dict[str, dict[str, Any]] = {}
        self.heard: dict[str, float] = {}
        self.servers: dict[str, dict[str, Any]] = {}
        self._counts: dict[str, deque[tuple[float, float]]] = {}
        if not mesh.link.grants.may_subscribe(mesh.subjects.status_all):
            raise Denial(False, mesh.subjects.status_all).error()
        mesh.link.subscribe(mesh.subjects.status_all, self._take)
        mesh.link.subscribe(mesh.subjects.server, self._take_server)

    def _take_server(self, message: LinkMessage) -> None:
        with contextlib.suppress(*NO_DOCUMENT):  # a foreign message: nothing to show
            document = json.loads(bytes(message.data))
            server_lines(document)
            url = str(document["url"])
            if url in self.servers or len(self.servers) < MOST_SERVERS:
                self.servers[url] = document

    def _take(self, message: LinkMessage) -> None:
        try:
            doc = json.loads(bytes(message.data))
            node = str(doc["node"])
        except (KeyError, *NO_DOCUMENT):
            return  # a foreign message: nothing to show
        if node not in self.statuses and not self._has_room():
            return
        self.statuses[node] = doc
        self.heard[node] = now = time.monotonic()
        counts = self._counts.setdefault(node, deque(maxlen=RATE_COUNTS))
        count = served(doc)
        if count is not None and (not counts or now - counts[-1][0] >= RATE_LEAST):
            counts.append((now, count))

    def _has_room(self) -> bool:
        """Whether one more node can be kept; one that fell silent makes room."""
        if len(self.statuses) < MOST_NODES:
            return True
        first = min(self.heard, key=self.heard.__getitem__)
        if time.monotonic() - self.heard[first] <= FORGET_AFTER:
            return False
        del self.statuses[first], self.heard[first], self._counts[first]
        return True

    def table(self, width: int, height: int | None = None) -> Table:
        """One line for each node, by role. width, height: see `status_table`."""
        now = time.monotonic()
        views = []
        for node, status in self.statuses.items():
            left = status.get("state") == "left"
            silent = now - self.heard[node] > FORGET_AFTER and not left
            rate = None if silent or left else rate_of(list(self._counts[node]))
            views.append(node_view(status, "silent" if silent else "", rate))
        return status_table(views, width, height)


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


def _all_spoke(picture: FleetPicture, now: float) -> bool:
    return all(node.heard is not None for node in picture.living(now))


def document(node: FleetNode, now: float) -> dict[str, Any]:
    """What is known of a node, as a status document: its own, or what the others know of it."""
    state = node.state(now)
    if node.heard is None and state not in ("left", "dead"):
        state = "silent"
    doc = dict(node.status or _known(node)) | {"node": node.node, "state": state}
    marks = node.marks(now)
    return doc | ({"marks": marks} if marks else {})


def objective_lines(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each model with an objective, of the node where it burns most; of documents that
    were read."""
    worst: dict[str, tuple[float, str, str]] = {}
    for doc in nodes:
        for slo in doc.get("slo", ()):
            burn = slo.get("burn", {})
            fastest = max(burn.values(), default=0.0)
            known = worst.get(slo["model"])
            if known is None or fastest > known[0]:
                rates = ", ".join(f"{window} {rate:g}" for window, rate in burn.items())
                target = Objective(slo.get("p99_ms"), slo.get("errors"))
                state = f"BURNS ({slo['burning']})" if slo.get("burning") else "holds"
                line = f"objective of {slo['model']} ({target}) {state} at {doc['node']}"
                worst[slo["model"]] = fastest, slo["model"], f"{line}: burn rates {rates}"
    return [line for _, _, line in sorted(worst.values(), key=lambda entry: entry[1])]


def _known(node: FleetNode) -> dict[str, Any]:
    stages = list(node.stages)
    first = stages[0] if stages else {}
    return {
        "role": node.role,
        "model": first.get("model", ""),
        "version": first.get("version", ""),
        "stages": stages,
        "queue_depth": sum(stage.get("waiting", 0) for stage in stages),
    }


def _is_server(server: dict[str, Any]) -> bool:
    """Whether this is the word of an embedded server's supervisor."""
    with contextlib.suppress(*NO_DOCUMENT):
        server_lines(server)
        return True
    return False


def run_status(nats: str, mesh: str, as_json: bool) -> int:
    """`swarm status`; returns its exit code, 1 where no node answers."""

    async def work(client: swarm.Mesh) -> int:
        async with FleetWatch(client.link, client.subjects, events=0) as watch:
            if not watch.answered or len(watch.picture.nodes) <= SMALL_FLEET:
                watch.request_statuses()
            if watch.answered:
                await watch.until(_all_spoke, SPOKEN_WITHIN)
            else:
                await asyncio.sleep(LISTEN)
            now = time.monotonic()
            nodes = [document(node, now) for node in watch.picture.nodes.values()]
        servers = [server for server in watch.servers.values() if _is_server(server)]
        if as_json:
            doc: dict[str, Any] = {"mesh": mesh, "nodes": nodes}
            # "server" alone for readers that know of one
            print_json(doc | ({"server": servers[0], "servers": servers} if servers else {}))
        elif nodes:
            views = [node_view(doc, rate=doc.get("rate")) for doc in nodes]
            out.print(status_table(views, out.width))
            told = [line for doc in servers for line in server_lines(doc)]
            for line in told:
                out.print(one_line(line), markup=False, highlight=False, soft_wrap=True)
            for line in objective_lines(nodes):
                out.print(one_line(line), markup=False, highlight=False, soft_wrap=True)
            for node in watch.picture.nodes.values():
                for text in node.marks(now).values():
                    out.print(f"{node.node} is marked: {text}", markup=False, soft_wrap=True)
        else:
            out.print(f"no node speaks in mesh {mesh!r}: swarm up, or swarm-node --role shard-1 …")
        return 0 if nodes else 1

    return with_mesh(nats, mesh, as_json, work)


def picture(board: StatusBoard) -> Table:
    """The board on this terminal, as large as the terminal is now."""
    return board.table(out.width, out.height - 1 if out.is_terminal else None)


def run_top(nats: str, mesh: str) -> int:
    """`swarm top`, until Ctrl-C; returns its exit code."""

    async def work(client: swarm.Mesh) -> int:
        stop = stop_on_signals()
        board = StatusBoard(client)
        with Live(picture(board), console=out, refresh_per_second=4) as live:
            while not stop.is_set():
                try:
                    await asyncio.wait_for(stop.wait(), 0.5)
                except TimeoutError:
                    live.update(picture(board))
        return 0

    return with_mesh(nats, mesh, False, work)
