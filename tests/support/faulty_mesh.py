"""A mesh of real processes that faults are played on: its nodes, its servers, a link to one."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from nodes.config import MOVED
from nodes.up.embedded_server import EmbeddedServer
from nodes.up.mesh import LocalMesh, local_mesh, push
from nodes.up.supervisor import NodeProcess
from support.cluster import Servers, start_servers
from support.cut_link import CutLink, cut_link, start_in
from support.meshes import split_digits
from swarm.errors import Unavailable
from swarm.link import jetstream
from swarm.subjects import api

REQUEST_BUDGET = 5.0  # seconds for every request
READY_TIMEOUT = 30.0  # seconds that a node may take to come up, or to leave
RETURN_TIMEOUT = 5.0  # seconds that a node may take to serve again after a hang or a cut
STAGES = 3
SEED = 7  # of the faults' moments


@dataclass(frozen=True)
class Layout:
    """The processes of a mesh: `replicas` nodes for each shard, `fallbacks`, and `extra` roles.

    storage: of the lanes, `memory` or `file`. credit: as `swarm-node --credit`; 0: its default.
    remote: the role (`shard-2`) that runs behind a link that can be cut, or empty. watched: whether
    the server starts again as under `swarm up`; else the scenarios decide when. servers:
    several are a cluster, and every message goes by them. lanes: as `swarm-node --lanes`. budget:
    seconds of each request.
    """

    replicas: int = 1
    fallbacks: int = 1
    extra: tuple[str, ...] = ()
    storage: str = "memory"
    credit: int = 0
    remote: str = ""
    watched: bool = False
    servers: int = 1
    lanes: str = MOVED
    budget: float = REQUEST_BUDGET

    def roles(self) -> list[str]:
        shards = [f"shard-{k}" for k in range(1, STAGES + 1) for _ in range(self.replicas)]
        return [*shards, *self.extra, *["fallback"] * self.fallbacks]

    def flags(self) -> list[str]:
        credit = ["--credit", str(self.credit)] if self.credit else []
        cluster = ["--lanes", self.lanes, "--stored"] if self.servers > 1 else []
        return ["--storage", self.storage, *credit, *cluster]


@dataclass
class Rig:
    """A ready mesh and the tools of the scenarios.

    server: scenarios may restart it. servers: of a cluster, None without one. link: scenarios may
    cut it; None where there is none. rng: draws the moments of the faults. quick: stops and cuts
    are short.
    """

    local: LocalMesh
    server: EmbeddedServer
    layout: Layout
    quick: bool
    link: CutLink | None = None
    servers: Servers | None = None
    rng: random.Random = field(default_factory=lambda: random.Random(SEED), init=False)

    @property
    def cluster(self) -> Servers:
        """The servers of a layout that has several."""
        assert self.servers is not None
        return self.servers

    def node(self, role: str, index: int = 0) -> NodeProcess:
        """The index-th process of a role, in order of its first start."""
        return [n for n in self.local.supervisor.nodes if n.role == role][index]

    async def revive(self, nodes: Sequence[NodeProcess]) -> None:
        """Start the dead ones of `nodes` and wait until every node of the mesh is ready."""
        for node in nodes:
            if not node.alive:
                node.start()
        await _ready(self.local)

    async def drain(self, node: NodeProcess) -> None:
        """SIGTERM, and wait until it has left. Raises `Unavailable` when it does not."""
        node.signal(signal.SIGTERM)
        deadline = time.monotonic() + READY_TIMEOUT
        while node.alive:
            if time.monotonic() > deadline:
                raise Unavailable(f"{node.role} did not end within {READY_TIMEOUT} s of SIGTERM")
            await asyncio.sleep(0.01)

    async def idle_shards(self) -> list[NodeProcess]:
        """The shards that serve nothing while the load runs, whatever state they report."""
        idle = [n for n in self.local.supervisor.nodes if n.role.startswith("shard-")]
        before = {node.pid: self._served(node) for node in idle}
        deadline = time.monotonic() + RETURN_TIMEOUT
        while idle and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            idle = [node for node in idle if self._served(node) <= before[node.pid]]
        return idle

    def _served(self, node: NodeProcess) -> int:
        """Requests served, by the node's last status, which comes every second."""
        stages = (self.local.status_of(node) or {}).get("stages", ())
        return sum(int(stage["counters"]["served"]) for stage in stages)

    async def ack_waits(self) -> dict[str, float]:
        """The lanes' `ack_wait` in milliseconds by stage, as the server has it."""
        mesh = self.local.mesh
        manifest = split_digits().manifest
        lanes, domain = (manifest.model, manifest.version), mesh.link.domain
        waits = {}
        for stage in range(1, STAGES + 1):
            stream = mesh.subjects.stream(*lanes, stage, domain)
            name = mesh.subjects.consumer(manifest.model, stage)
            info = await jetstream.call(mesh.link, api("CONSUMER.INFO", stream, name))
            waits[str(stage)] = info["config"]["ack_wait"] / 1e6
        return waits

    def check_nodes(self) -> None:
        """Raises `Unavailable` where a node has ended."""
        for node in self.local.supervisor.nodes:
            if not node.alive:
                raise Unavailable(f"{node.role} ended:\n{self.local.tail(node)}")

    async def server_with_lanes(self) -> int:
        """The server that leads the stream of the first stage's lanes."""
        mesh, manifest = self.local.mesh, split_digits().manifest
        stream = mesh.subjects.stream(manifest.model, manifest.version, 1, mesh.link.domain)
        return await self.cluster.leader_of(mesh.link, stream)


async def _ready(local: LocalMesh) -> None:
    """Wait until every node is ready. Raises `Unavailable`, at once when a node has ended: the
    supervisor does not start it again here."""
    waiting = asyncio.create_task(local.ready(READY_TIMEOUT), name="ready")
    try:
        while not (await asyncio.wait([waiting], timeout=0.05))[0]:
            for node in local.supervisor.nodes:
                if not node.alive:
                    raise Unavailable(f"{node.role} ended:\n{local.tail(node)}")
    finally:
        waiting.cancel()
    waiting.result()


@asynccontextmanager
async def start_rig(layout: Layout, quick: bool) -> AsyncIterator[Rig]:
    """A ready mesh of this layout. Raises `Unavailable` when a node does not come up."""
    async with contextlib.AsyncExitStack() as stack:
        link = None
        url = ""
        server: EmbeddedServer | None = None
        if layout.remote:
            link = stack.enter_context(cut_link())
            server = await stack.enter_async_context(EmbeddedServer(host=link.server_address))
            url = server.url
        servers: Servers | None = None
        if layout.servers > 1:
            servers = await stack.enter_async_context(start_servers(layout.servers))
            url, server = servers.url, servers.all[0]
        local = await stack.enter_async_context(local_mesh(url=url, watch_server=layout.watched))
        server = server or local.server
        assert server is not None
        await push(local, split_digits().manifest.to_json(), split_digits().files)
        rig = Rig(local, server, layout, quick, link, servers)
        for index, role in enumerate(layout.roles()):
            if link is not None and role == layout.remote:
                start_in(link.node_namespace, local, role, "digits", *layout.flags())
            else:
                where = ["--nats", servers.url_from(index)] if servers is not None else []
                # The scenarios decide when a node starts again, not the supervisor.
                local.start(role, "digits", *where, *layout.flags()).wanted = False
        await _ready(local)
        yield rig
