"""Status documents, service discovery and the edge's results keep their contracts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import pairwise
from typing import Any

import jsonschema
import numpy as np
import pytest
import pytest_asyncio
from nats.aio.client import Client
from nats.aio.msg import Msg
from support.commands import ROOT, Commands, said
from support.meshes import READY, awake, digits, dismiss, good_request
from support.waiting import GENEROUS, eventually

import swarm
from nodes.up.mesh import LocalMesh
from swarm.fleet.service import FleetWatch, ask_fleet
from swarm.fleet.view import FleetView
from swarm.flow.objective import Objective

pytestmark = [
    pytest.mark.integration,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
]

SCHEMA = json.loads((ROOT / "swarm" / "schemas" / "status.schema.json").read_text())
ROLES = {"shard-1", "shard-2", "shard-3", "fallback", "gateway", "edge"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def with_edge(shared_mesh: LocalMesh) -> AsyncIterator[LocalMesh]:
    """An edge beside the others that publishes its results as `test`."""
    await awake(shared_mesh)
    edge = shared_mesh.start(
        "edge", "digits", "--rate", "10", "--budget", "30000", "--sink", "test"
    )
    await shared_mesh.ready(READY)
    yield shared_mesh
    await dismiss(shared_mesh, [edge])


Docs = list[dict[str, Any]]


async def collect(client: Client, subject: str, enough: Callable[[Docs], bool]) -> Docs:
    """The documents that come on a subject, until they are enough."""
    docs: list[dict[str, Any]] = []

    async def take(message: Msg) -> None:
        docs.append(json.loads(message.data))

    subscription = await client.subscribe(subject, cb=take)
    await eventually(lambda: enough(docs), f"documents on {subject}")
    await subscription.unsubscribe()
    return docs


async def discover(client: Client, verb: str, nodes: int) -> Docs:
    """Ask as `nats service ls` and `nats service info` do; this many nodes answer."""
    inbox = client.new_inbox()
    docs: list[dict[str, Any]] = []

    async def take(message: Msg) -> None:
        docs.append(json.loads(message.data))

    subscription = await client.subscribe(inbox, cb=take)
    await client.publish(f"$SRV.{verb}", b"", reply=inbox)
    await eventually(lambda: len(docs) >= nodes, f"{nodes} answers to {verb}")
    await client.flush()
    await subscription.unsubscribe()
    return docs


async def test_status_documents_of_every_role_keep_their_contract(
    with_edge: LocalMesh, nats_client: Client
) -> None:
    validator = jsonschema.Draft202012Validator(
        SCHEMA, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    running = {node.pid for node in with_edge.supervisor.nodes}

    def of(docs: Docs, role: str) -> Docs:
        return [doc for doc in docs if doc["role"] == role]

    def enough(docs: Docs) -> bool:
        """Each twice, and the edge was answered in between."""
        return (
            all(sum(doc["pid"] == pid for doc in docs) >= 2 for pid in running)
            and (edge := of(docs, "edge"))[-1]["edge"]["answered"] > edge[0]["edge"]["answered"]
            and of(docs, "shard-1")[-1]["stages"][0]["counters"]["served"] > 0
        )

    docs = await collect(nats_client, "swarm.default.status.>", enough)
    for doc in docs:
        problems = [error.message for error in validator.iter_errors(doc)]
        assert problems == [], doc["role"]
    assert {doc["role"] for doc in docs} == ROLES
    per_node = {pid: [d for d in docs if d["pid"] == pid] for pid in running}
    for spoken in per_node.values():
        for earlier, later in pairwise(spoken):
            assert earlier["at"] < later["at"]
            assert earlier["node"] == later["node"]
    assert of(docs, "shard-1")[-1]["ready_ms"] > 0
    assert {doc["every_s"] for doc in docs} == {1.0}, "a small fleet"
    assert [stage["stage"] for stage in of(docs, "fallback")[0]["stages"]] == [1, 2, 3]
    edge = of(docs, "edge")[-1]["edge"]
    assert edge["captured"] >= edge["answered"]


async def test_a_last_status_says_left(digits_mesh: LocalMesh, nats_client: Client) -> None:
    docs: list[dict[str, Any]] = []

    async def take(message: Msg) -> None:
        docs.append(json.loads(message.data))

    subscription = await nats_client.subscribe("swarm.default.status.>", cb=take)
    events = await nats_client.subscribe("swarm.default.events.*")
    node = digits_mesh.start("shard-3", "digits")
    await digits_mesh.ready(READY)
    await dismiss(digits_mesh, [node])
    await eventually(
        lambda: any(doc["pid"] == node.pid and doc["state"] == "left" for doc in docs),
        "the last status",
    )
    await nats_client.flush()
    await subscription.unsubscribe()
    states = [doc["state"] for doc in docs if doc["pid"] == node.pid]
    order = [state for at, state in enumerate(states) if at == 0 or states[at - 1] != state]
    assert order[-3:] == ["ready", "draining", "left"]
    assert set(order[:-3]) <= {"waiting", "loading"}
    told = []
    while events.pending_msgs:
        told.append(json.loads((await events.next_msg(1.0)).data))
    await events.unsubscribe()
    ours = [doc for doc in told if doc["role"] == "shard-3"]
    assert {"joined", "left"} <= {doc["kind"] for doc in ours}


async def test_every_node_answers_service_discovery(
    with_edge: LocalMesh, nats_client: Client
) -> None:
    expected = {
        status["node"]
        for node in with_edge.supervisor.nodes
        if (status := with_edge.status_of(node)) is not None
    }
    pings = await discover(nats_client, "PING", len(expected))
    assert {doc["metadata"]["node"] for doc in pings} == expected
    assert all(doc["type"] == "io.nats.micro.v1.ping_response" for doc in pings)
    assert len({doc["id"] for doc in pings}) == len(pings) == len(expected)
    infos = await discover(nats_client, "INFO.swarm-default", len(expected))
    assert {doc["metadata"]["role"] for doc in infos} == ROLES
    for doc in infos:
        subjects = [endpoint["subject"] for endpoint in doc["endpoints"]]
        assert all(endpoint["metadata"] is not None for endpoint in doc["endpoints"])
        role = doc["metadata"]["role"]
        if role == "gateway":
            assert subjects == ["swarm.default.infer.*"]
        elif role in ("shard-2", "shard-3"):
            assert subjects == []
        else:
            assert subjects == ["swarm.default.infer.digits"]


async def test_an_edges_results_say_how_each_capture_ended(
    with_edge: LocalMesh, nats_client: Client
) -> None:
    _, logits = digits()
    lines = await collect(nats_client, "swarm.default.results.test", lambda lines: len(lines) > 10)
    sequences = [line["sequence"] for line in lines]
    assert len(set(sequences)) == len(sequences), "each capture ends once"
    assert max(sequences) - min(sequences) == len(sequences) - 1, "none is missing"
    for line in lines:
        assert line["status"] == "OK"
        assert line["degraded"] is False
        assert [hop["stage"] for hop in line["hops"]] == [1, 2, 3]
        assert line["latency_ms"] > 0
        got = np.asarray(line["outputs"]["logits"], np.float32)
        want = logits[line["sequence"] % len(logits)][None]
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()


async def test_an_edge_prints_a_line_a_capture_and_ends_after_the_last_though_all_miss_their_budget(
    digits_mesh: LocalMesh, run: Commands
) -> None:
    """With a budget that suffices; and with one of a millisecond, which most captures miss."""
    edges = [
        run.start(
            "nodes.cli.node",
            *("--role", "edge", "--model", "digits", "--nats", digits_mesh.url),
            *("--trust", digits_mesh.trusted, "--source", "digits"),
            *("--rate", "50", "--count", "25", "--budget", budget, "--on-full", "block"),
        )
        for budget in ("30000", "1")
    ]
    printed = []
    for edge in edges:
        assert await asyncio.to_thread(edge.wait) == 0
        lines = [json.loads(line) for line in edge.stdout.splitlines()]
        assert sorted(line["sequence"] for line in lines) == list(range(25))
        printed.append(lines)
    assert {line["status"] for line in printed[0]} == {"OK"}
    for line in printed[1]:
        # Refused at once where it is clear beforehand that the budget cannot be met.
        assert line["status"] in ("OK", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
        assert ("outputs" in line) == (line["status"] == "OK")
        assert ("error" in line) == (line["status"] != "OK")
    await good_request(digits_mesh.mesh, budget=GENEROUS)


async def test_the_services_statistics_count_requests(
    digits_mesh: LocalMesh, nats_client: Client
) -> None:
    def total(docs: list[dict[str, Any]]) -> int:
        return sum(e["num_requests"] for doc in docs for e in doc["endpoints"])

    nodes = len(digits_mesh.supervisor.nodes)
    before = total(await discover(nats_client, "STATS", nodes))
    body = {
        "inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.5] * 64}]
    }
    for _ in range(5):
        await nats_client.request(
            "swarm.default.infer.digits", json.dumps(body).encode(), timeout=GENEROUS
        )
    assert total(await discover(nats_client, "STATS", nodes)) - before == 5


async def the_fleet_says(mesh: swarm.Mesh, node: str, state: str) -> None:
    """Ask for the fleet's view until whichever node answers says so, thirty times in a row:
    what one node has heard of, the next one that answers may not know yet."""
    told: dict[str, str] = {}

    def take(page: Mapping[str, Any]) -> None:
        told.update({entry["node"]: entry["state"] for entry in page["nodes"]})

    async def all_say() -> bool:
        for _ in range(30):
            told.clear()
            assert await ask_fleet(mesh.link, mesh.subjects, take)
            if told.get(node) != state:
                return False
        return True

    await eventually(all_say, f"all say that {node} is {state}")


async def test_a_newcomer_sees_a_killed_node_and_what_happened_and_drains_another(
    digits_mesh: LocalMesh,
) -> None:
    """One node of a stage is killed before the reader comes; then another is told to drain."""
    killed = digits_mesh.start("shard-3", "digits")
    spare = digits_mesh.start("shard-3", "digits")
    await digits_mesh.ready(READY)
    dead, drained = (
        status["node"] for node in (killed, spare) if (status := digits_mesh.status_of(node))
    )
    killed.wanted = spare.wanted = False  # the supervisor starts neither again
    mesh = digits_mesh.mesh
    await the_fleet_says(mesh, dead, "alive")
    assert killed.process is not None
    killed.process.kill()
    await the_fleet_says(mesh, dead, "dead")
    async with FleetWatch(mesh.link, mesh.subjects) as watch:
        assert watch.answered
        assert await watch.until(lambda p, now: p.nodes[dead].state(now) == "dead", GENEROUS)
        assert await watch.until(
            lambda p, now: drained in p.nodes and p.nodes[drained].state(now) == "ready", GENEROUS
        )
        assert {"joined", "died"} <= {event["kind"] for event in watch.view.events}
        done = await asyncio.to_thread(said, "drain", drained, "--nats", digits_mesh.url)
        assert (done.code, "has left" in done.stdout) == (0, True), done
        assert await watch.until(lambda p, now: p.nodes[drained].state(now) == "left", GENEROUS)
    await good_request(mesh)
    await dismiss(digits_mesh, [killed, spare])


async def test_an_objective_that_burns_is_told_by_who_answers(
    digits_mesh: LocalMesh, nats_client: Client
) -> None:
    """An objective that nothing can meet is set; whichever node answers says that it burns."""
    body = {
        "inputs": [{"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.5] * 64}]
    }
    asked = json.dumps(body).encode()
    await digits_mesh.mesh.registry.set_objective("digits", Objective(0.001, 0.01))
    mesh = digits_mesh.mesh
    try:
        async with FleetWatch(mesh.link, mesh.subjects) as watch:

            def is_told(view: FleetView, now: float) -> bool:
                burning = {
                    slo["burning"]
                    for node in view.nodes.values()
                    for slo in node.status.get("slo", ())
                }
                told = any(
                    event["kind"] == "slo" and event.get("burning") == "latency"
                    for event in view.events
                )
                return told and "latency" in burning

            async with asyncio.timeout(READY):
                while not await watch.until(is_told, 0.5):
                    for _ in range(40):
                        await nats_client.request(
                            "swarm.default.infer.digits", asked, timeout=GENEROUS
                        )
        place = ("--nats", digits_mesh.url)

        async def is_shown() -> bool:
            """Once who answers has spoken while the command listened."""
            shown = await asyncio.to_thread(said, "status", *place)
            return "BURNS (latency)" in shown.stdout

        await eventually(is_shown, "`swarm status` shows it")
        told = await asyncio.to_thread(said, "model", "slo", "digits", "--json", *place)
        assert json.loads(told.stdout)["slo"] == {"p99_ms": 0.001, "errors": 0.01}
    finally:
        await mesh.registry.set_objective("digits", None)
    assert "slo" not in (await mesh.registry.desired("digits") or {"slo": "lost"})
