"""`swarm status`: what the status documents of all nodes say."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from nodes.cli.command import seldom
from nodes.cli.fields import one_line
from nodes.cli.options import Target
from nodes.cli.status_table import node_view, status_table
from nodes.cli.with_mesh import client_of
from nodes.console import out, print_json
from nodes.noted import notes_of
from swarm.fleet.coverage import out_of_service
from swarm.fleet.service import SPOKEN_WITHIN, FleetWatch
from swarm.fleet.view import FleetNode
from swarm.flow.objective import Objective
from swarm.link.greetings import old_servers
from swarm.models.serving_versions import ServingVersions

NO_DOCUMENT = (ValueError, TypeError, ArithmeticError, RecursionError)  # of a foreign message
LACKS = 3  # the exit code where requests find no answer, though a node is there
GONE = ("left", "dead", "silent")  # whose last word says nothing of now
LAST_NOTES = 4  # events of the server that are shown
NOTE_LISTS = ("lost", "kept", "restored")  # of an event of the server


def server_lines(server: dict[str, Any]) -> list[str]:
    """What an embedded server's document says, for people. Raises `TypeError`, `ValueError` where
    its fields have other types."""
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


def flaw_lines(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each thing that nodes say is wrong with what the mesh keeps at its server; of
    documents that were read."""
    told = {
        (flaw["stream"], flaw["detail"]): f"{flaw['title']}: {flaw['detail']}; an operator mends "
        f"it: {flaw['mend']}"
        for doc in nodes
        for flaw in doc.get("flaws", ())
    }
    return [f"WRONG at the server: {line}" for _, line in sorted(told.items())]


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


async def status(
    target: Target,
    any_node: bool = seldom(False, "Exit with 0 as soon as any node answers, whatever lacks."),
) -> int:
    """Show every node once: state, requests, latencies, memory.

    Exits with 1 if none answers, with 3 if requests find no answer: a stage of a model that serves
    has no ready node, a lane is missing, or the server has lost the models that nodes serve."""
    async with client_of(target) as client:
        async with FleetWatch(client.link, client.subjects, events=0) as watch:
            await watch.hear_all()
            serving = ServingVersions(client.link, client.subjects, client.registry, watch.view)
            await serving.read()

            def lacks() -> list[str]:
                nodes, now = watch.view.nodes.values(), time.monotonic()
                return out_of_service(serving.stages, serving.unlisted, nodes, now)

            if lack := lacks():
                await watch.hear_all(at_least=SPOKEN_WITHIN)
                lack = lacks()
            now = time.monotonic()
            nodes = [document(node, now) for node in watch.view.nodes.values()]
            known = watch.view.nodes.values()
            notes = notes_of(node.status for node in known if node.state(now) not in GONE)
        servers = [server for server in watch.servers.values() if _is_server(server)]
        # A server alone would not have admitted this client.
        found = await old_servers(client.link) if client.link.home.cluster else []
        old = [str(each) for each in found]
        if target.json:
            doc: dict[str, Any] = {"mesh": target.mesh, "nodes": nodes}
            doc |= {"servers_too_old": old} if old else {}
            doc |= {"lacks": lack} if lack else {}
            doc |= {"notes": [asdict(note) for note in notes]} if notes else {}
            # "server" alone for readers that know of one
            print_json(doc | ({"server": servers[0], "servers": servers} if servers else {}))
        elif nodes:
            views = [node_view(doc, rate=doc.get("rate")) for doc in nodes]
            out.print(status_table(views, out.width))
            told = [line for doc in servers for line in server_lines(doc)]
            for line in told:
                out.print(one_line(line), markup=False, highlight=False, soft_wrap=True)
            noted = [note.line() for note in notes]
            for line in (*flaw_lines(nodes), *objective_lines(nodes), *noted):
                out.print(one_line(line), markup=False, highlight=False, soft_wrap=True)
            for node in watch.view.nodes.values():
                for text in node.marks(now).values():
                    out.print(f"{node.node} is marked: {text}", markup=False, soft_wrap=True)
        else:
            out.print(
                f"no node speaks in mesh {target.mesh!r}: swarm up, or swarm-node --role shard-1 …"
            )
        if not target.json:
            told_last = [*old, *(f"LACKS: {line}" for line in lack)]
            for line in told_last:
                out.print(one_line(line), markup=False, highlight=False, soft_wrap=True)
        return exit_code(nodes, [] if any_node else lack)


def exit_code(nodes: Sequence[Mapping[str, Any]], lack: Sequence[str]) -> int:
    """Of `swarm status`, by the nodes that are known and the lines of `out_of_service`."""
    return 1 if not nodes else LACKS if lack else 0
