"""What tritonclient sees, with its default settings, while parts of a mesh with two gateways die.

One mesh: the digits in two shards, a fallback node, an embedded server, and two gateways behind a
balancer of TCP. Before each fault the load runs quietly; the fault is over once all is ready again.
A refusal for overload, which says when to come back, is counted apart from a failure: a machine
that has too few cores for the load and for processes that start refuses some, whatever dies.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from support.balancer import Balancer, Behind
from support.gateways import doors
from support.meshes import READY, all_ready, digits, mesh_of, split_digits
from support.ports import free_port
from support.triton_clients import Load, triton_loads
from support.waiting import eventually

from bench.report.figure import percentile
from bench.report.frame import Benchmark, Progress
from bench.report.tables import new_table
from nodes.console import out
from nodes.up.mesh import LocalMesh
from nodes.up.supervisor import NodeProcess

PROTOCOLS = ("http", "grpc")
QUIET = 2.0  # seconds before a fault
TAIL = 1.0  # seconds behind it
MEND = 60.0  # seconds until all is ready again


@dataclass(frozen=True)
class FaultsPlan:
    """rate: requests a second of each client. trials: of each fault."""

    rate: float = 100.0
    trials: int = 1


@dataclass
class Rig:
    """places: where the gateways listen, in the order of their nodes."""

    local: LocalMesh
    places: list[Behind]
    balancer: Balancer

    def node(self, role: str) -> NodeProcess:
        """The first of a role."""
        return next(node for node in self.local.supervisor.nodes if node.role == role)

    async def mended(self, node: NodeProcess, pid: int) -> None:
        """Until a node that was ended runs as another process, and all are ready."""
        await eventually(lambda: node.alive and node.pid != pid, "it starts again", MEND)
        await all_ready(self.local)
        gateways = [node for node in self.local.supervisor.nodes if node.role == "gateway"]
        await eventually(
            lambda: all(len(doors(self.local, each)) == 2 for each in gateways), "all doors", MEND
        )
        async with asyncio.timeout(MEND):
            for place in self.places:
                await self.balancer.until(place, ready=True)


def killed(role: str) -> Callable[[Rig], Awaitable[None]]:
    """SIGKILL to the first node of a role, which its supervisor starts again."""

    async def inflict(rig: Rig) -> None:
        node = rig.node(role)
        pid = node.pid
        node.signal(signal.SIGKILL)
        await rig.mended(node, pid)

    return inflict


async def server_killed(rig: Rig) -> None:
    """SIGKILL to the embedded server, which is started again."""
    server = rig.local.server
    assert server is not None
    pid = server.pid
    server.send(signal.SIGKILL)
    await eventually(lambda: server.alive and server.pid != pid, "it starts again", MEND)
    node = rig.node("shard-1")
    await rig.mended(node, 0)


async def started_again(rig: Rig) -> None:
    """Each gateway in turn: SIGTERM, and another one at its place."""
    for place in rig.places:
        node = rig.node("gateway")
        node.wanted = False
        node.signal(signal.SIGTERM)
        await eventually(lambda node=node: not node.alive, "it leaves", MEND)  # type: ignore[misc]
        rig.local.supervisor.nodes.remove(node)
        await rig.mended(_gateway(rig.local, place), 0)


# kill -9 of the named part; restarts: SIGTERM to both gateways in turn.
FAULTS: dict[str, Callable[[Rig], Awaitable[None]]] = {
    "shard": killed("shard-1"),
    "fallback": killed("fallback"),
    "server": server_killed,
    "one gateway": killed("gateway"),
    "restarts": started_again,
}
OVERLOAD = ("[429]", "RESOURCE_EXHAUSTED")  # in the text of an error
UNSEEN = ("shard", "fallback", "restarts")
"""Faults of which no client may see an error."""


def _gateway(local: LocalMesh, place: Behind) -> NodeProcess:
    flags = [word for name, port in place.ports.items() for word in (f"--{name}", str(port))]
    return local.start("gateway", "", *flags)


async def measure_faults(plan: FaultsPlan, progress: Progress) -> dict[str, Any]:
    """The document of `swarm bench gateway --faults`."""
    places = [Behind({name: free_port() for name in PROTOCOLS}) for _ in range(2)]
    found: dict[str, dict[str, Any]] = {}
    progress("starting")
    model, roles = split_digits(stages=2), ("shard-1", "shard-2", "fallback")
    async with mesh_of(model, *roles) as local, Balancer(places) as balancer:
        rig = Rig(local, places, balancer)
        for place in places:
            _gateway(local, place)
        await local.ready(READY)
        await rig.mended(rig.node("gateway"), 0)
        for name, inflict in FAULTS.items():
            loads: list[tuple[float, Load]] = []
            for trial in range(plan.trials):
                progress(f"{name}, {trial + 1} of {plan.trials}")
                loads += await _one(rig, inflict, plan.rate)
            for protocol in PROTOCOLS:
                own = [(at, load) for at, load in loads if load.protocol == protocol]
                found[f"{name}/{protocol}"] = _seen(own)
    return {"rate": plan.rate, "trials": plan.trials, "seen": found}


async def _one(
    rig: Rig, inflict: Callable[[Rig], Awaitable[None]], rate: float
) -> list[tuple[float, Load]]:
    """One trial: when the fault came, by the system's clock, and the load, of each client."""
    images, logits = digits()
    given, expected = ("image", images[:1]), ("logits", logits[:1])
    addresses = {name: f"127.0.0.1:{port}" for name, port in rig.balancer.ports.items()}
    async with triton_loads(addresses, "digits", given, expected, rate) as loads:
        await asyncio.sleep(QUIET)  # the quiet part
        at = time.time()
        await inflict(rig)
        await asyncio.sleep(TAIL)  # what comes behind the fault
    return [(at, load) for load in loads]


def _seen(loads: list[tuple[float, Load]]) -> dict[str, Any]:
    """Of one fault and one client: requests that were answered or failed, over all trials."""
    quiet = [1e3 * each.took for at, load in loads for each in load.asked if each.began < at - 0.5]
    errors = [error for _, load in loads for error in load.errors]
    refused = sum(any(word in error for word in OVERLOAD) for error in errors)
    hit = [each for at, load in loads for each in load.asked if each.began >= at - 0.5]
    return {
        "requests": sum(len(load.asked) for _, load in loads),
        "failed": len(errors) - refused,
        "refused": refused,
        "errors": dict(Counter(each.error for each in hit if each.error).most_common(5)),
        "quiet_p99_ms": round(percentile(quiet, 0.99), 1),
        "slowest_ms": round(1e3 * max(each.took for each in hit), 1),
        "late": sum(each.took > 1.0 for each in hit),
    }


def show(document: dict[str, Any]) -> None:
    """A row for each fault and client, and below each the errors in the client's words."""
    rate = document["rate"]
    table = new_table(
        f"What tritonclient sees, {rate:g} requests a second of each client",
        *(
            "kill -9 of",
            "client",
            "asked",
            "failed",
            "refused",
            "over 1 s",
            "slowest ms",
            "quiet p99",
        ),
        left=2,
    )
    for key, seen in document["seen"].items():
        name, _, protocol = key.rpartition("/")
        counts = [str(seen[field]) for field in ("requests", "failed", "refused", "late")]
        times = [f"{seen[field]:.4g}" for field in ("slowest_ms", "quiet_p99_ms")]
        table.add_row(name, protocol, *counts, *times)
    out.print(table)
    for key, seen in document["seen"].items():
        for error, count in seen["errors"].items():
            out.print(f"{key}: {count} x {error}", markup=False, highlight=False, soft_wrap=True)


def misses(document: dict[str, Any]) -> list[str]:
    """The faults that a client noticed and should not have."""
    return [
        f"{key}: {seen['failed']} of {seen['requests']} requests failed: {seen['errors']}"
        for key, seen in document["seen"].items()
        if seen["failed"] and key.rpartition("/")[0] in UNSEEN
    ]


FAULTS_SEEN = Benchmark("gateway --faults", measure_faults, show, misses=misses)
