"""A local mesh: an embedded server unless one is given, and node processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import swarm
from nodes.access import NOTHING, AccessOptions
from nodes.up.embedded_cluster import EmbeddedCluster, elected
from nodes.up.embedded_server import EmbeddedServer
from nodes.up.kept_model import KeptModel, push_to_serve
from nodes.up.rights import LocalRights
from nodes.up.server_report import ServerReport
from nodes.up.server_watch import ServerWatch
from nodes.up.supervisor import NodeProcess, Supervisor
from nodes.versions.upkeep import make_stores
from swarm.errors import InvalidArgument, Unavailable
from swarm.fleet.events import ensure_events
from swarm.link import LinkMessage, LinkOptions
from swarm.model import ModelInfo
from swarm.models.artifacts import Source
from swarm.scratch import Scratch
from swarm.security.identity import Identity
from swarm.security.signed_entries import Verifier
from swarm.security.trusted_keys import TrustedKeys, own_trust_file, trust
from swarm.subjects import speaker
from swarm.tasks import told

log = logging.getLogger("swarm.up")

BROKEN_FROM = 3  # deaths in a row before it was ready from which a node will not become ready
CHECK_EVERY = 0.2  # seconds: a process that dies publishes no status
MOST_STATUSES = 1024


@dataclass
class LocalMesh:
    """A running mesh. statuses: the last status document of each node, by node id; of
    `MOST_STATUSES` nodes, since each start of a process is another node.

    changed: set at each status. shm: see `local_mesh`. servers: those that are embedded. report:
    what people hear of them. rights: of users, where its servers are embedded and know any.
    asked: the models that a model asks, its lighter one among them, by its name. stood_in: those
    that name a model as their lighter one, by its name. access: of all its processes to another
    server. trusted: what its nodes are given for --trust: the user's own file and, where a key was
    made for this mesh, one with that key. tasks: live as long as the mesh.
    """

    url: str
    name: str
    mesh: swarm.Mesh
    supervisor: Supervisor
    logs: Path
    servers: list[EmbeddedServer]
    report: ServerReport
    shm: bool = True
    rights: LocalRights | None = None
    access: AccessOptions = NOTHING
    trusted: str = ""
    statuses: dict[str, dict[str, Any]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    asked: dict[str, list[str]] = field(default_factory=dict)
    stood_in: dict[str, list[str]] = field(default_factory=dict)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def server(self) -> EmbeddedServer | None:
        """The first embedded server; None where a server was given."""
        return self.servers[0] if self.servers else None

    async def keep(self, folder: Path, sent: Callable[[int], None] = lambda size: None) -> None:
        """Push the model of a folder and let it serve; from now on put it back where the server
        loses it. The folder stays where it is as long as the mesh runs. sent: as `Registry.push`.
        """
        model = KeptModel(self.mesh, folder, self.report.tell)
        self.note_asked(model.manifest.to_json())
        await model.push(sent)
        self.own(model.run(), f"keep {model.name}")

    def note_asked(self, manifest: bytes) -> None:
        """Nodes of this version are given the rights to ask what it asks, and its lighter model;
        nodes of that one, those to answer in its place."""
        info = ModelInfo.from_manifest(manifest)
        asks = {name.partition("@")[0] for name in info.asks}
        if info.lighter is not None:
            asks.add(info.lighter.model)
            self.stood_in.setdefault(info.lighter.model, []).append(info.model)
        if asks:
            self.asked[info.model] = sorted(asks)

    def own(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run some work as long as the mesh runs; its failure is logged at once."""
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(told)
        self.tasks.append(task)

    @property
    def pid_files(self) -> str:
        """Of the embedded servers, for `swarm auth … --pid-file`."""
        return ",".join(str(server.pid_file) for server in self.servers)

    def start(self, role: str, model: str, *extra: str) -> NodeProcess:
        """Start one node process; its log goes to `logs`."""
        arguments = ["--role", role, "--nats", self.url, "--mesh", self.name, *extra]
        if not self.shm:
            arguments.append("--stored")
        if self.trusted:
            arguments += ["--trust", self.trusted]
        if self.rights is not None:
            # A gateway of no model answers for every one.
            name = model.partition("@")[0] or "*"
            asks = self.asked.get(name, ())
            beside = self.stood_in.get(name, ()) if role in ("shard-1", "fallback") else ()
            arguments += self.rights.issue(role, name, *beside, asks=asks).arguments()
        else:
            arguments += self.access.arguments()
        if model:
            arguments += ["--model", model]
        count = sum(node.role == role for node in self.supervisor.nodes)
        path = self.logs / f"{role}-{count + 1}.log"
        return self.supervisor.add(NodeProcess(role, arguments, path))

    def status_of(self, node: NodeProcess) -> dict[str, Any] | None:
        """The last status document of a node's present process, or None before the first."""
        for status in reversed(self.statuses.values()):
            if status["pid"] == node.pid and _is_of_here(status):
                return status
        return None

    async def ready(self, timeout: float = 30.0) -> None:
        """Wait until every node process says `ready`. Raises `Unavailable`, which names a node
        that did not, with the end of its log. timeout: seconds."""
        deadline = time.monotonic() + timeout
        while True:
            waiting = [
                node
                for node in self.supervisor.nodes
                if (self.status_of(node) or {}).get("state") != "ready"
            ]
            if not waiting:
                return
            broken = [n for n in waiting if not n.alive and n.past.failures >= BROKEN_FROM]
            if broken or time.monotonic() > deadline:
                node = (broken or waiting)[0]
                raise Unavailable(f"{node.role} did not become ready:\n{self.tail(node)}")
            await self._next_status(CHECK_EVERY)

    async def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait until `condition`, which is asked at each status; False after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                return False
            await self._next_status(CHECK_EVERY)
        return True

    async def _next_status(self, timeout: float) -> None:
        self.changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self.changed.wait()

    @staticmethod
    def tail(node: NodeProcess) -> str:
        """The last lines of a node's log."""
        try:
            assert node.log_path is not None
            return node.log_path.read_text(errors="replace")[-1500:]
        except OSError:
            return "(no log)"

    def take_status(self, message: LinkMessage) -> None:
        """Note a status document that came."""
        try:
            doc = json.loads(bytes(message.data))
            if doc["node"] != speaker(message.subject, message.headers):
                raise ValueError("a member speaks for another")
            pid, state = doc["pid"], doc["state"]
            self.statuses.pop(doc["node"], None)  # the latest stand at the end
            self.statuses[doc["node"]] = doc
            while len(self.statuses) > MOST_STATUSES:
                del self.statuses[next(iter(self.statuses))]
            if state == "ready" and _is_of_here(doc):
                self._note_ready(pid)
        except (ValueError, KeyError, TypeError, RecursionError):
            log.warning("a malformed status arrived on %s", message.subject)
        self.changed.set()

    def _note_ready(self, pid: int) -> None:
        for node in self.supervisor.nodes:
            if node.pid == pid:
                node.was_ready = True


def _is_of_here(status: Mapping[str, Any]) -> bool:
    """Whether a node runs on this host: on another one, another process has the same id."""
    here = socket.gethostname()
    return bool(status.get("host", here) == here)


def check_embedded(url: str, secure: bool, servers: int, port: int | None = None) -> None:
    """Raises `InvalidArgument` for settings of embedded servers beside the URL of one that runs,
    for one port of several servers, and for a port that is taken."""
    given = {"--secure": secure, "--servers": servers > 1, "--port": port is not None}
    for flag, is_given in given.items():
        if url and is_given:
            raise InvalidArgument(f"{flag} is for servers of its own: leave out --nats")
    if port and servers > 1:
        raise InvalidArgument("--port is for one server: leave out --servers")
    if port:
        _check_free(port)


def _check_free(port: int) -> None:
    """Raises `InvalidArgument` for a port of loopback that somebody listens on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InvalidArgument(
                f"--port {port}: {error.strerror}: give another port, or --nats "
                f"nats://127.0.0.1:{port} where that is a server to use"
            ) from None


@asynccontextmanager
async def local_mesh(
    *,
    url: str = "",
    name: str = "default",
    max_payload: int = 16 << 20,
    shm: bool = True,
    watch_server: bool = True,
    servers: int = 1,
    port: int = 0,
    secure: bool = False,
    tls: bool = True,
    store_key: str | None = None,
    access: AccessOptions = NOTHING,
    signer: Identity | None = None,
) -> AsyncIterator[LocalMesh]:
    """A mesh with no node yet. Everything started inside ends with it: nodes drain, then the
    server stops.

    url: a running server, '' for embedded ones. max_payload: bytes of an embedded server's largest
    message. shm: whether messages may go between processes without the server. watch_server:
    whether an embedded server that dies or hangs is started again. servers: how many are embedded;
    several are a cluster. port: of a single one, 0 for a free one. secure: whether embedded servers
    know users, speak TLS and encrypt their files, with keys that end with the mesh. tls: False
    leaves TLS out of that. store_key: in place of a new one, "" for files in plain. access: to the
    server of `url`, for all processes.

    Raises `InvalidArgument` for `secure`, a port or several servers with a server that runs
    already, and for a port that is taken.
    """
    check_embedded(url, secure, servers, port or None)
    embedded: list[EmbeddedServer] = []
    scratch = Scratch("logs")
    logs = scratch.path
    supervisor = Supervisor()
    try:
        rights = LocalRights(logs / "rights", name, tls) if secure else None
        own = access if rights is None else rights.access("operator", "operator")
        if not url:
            more = "" if rights is None else rights.configuration()
            # A letter first: nats-server reads a variable of digits as a number.
            fresh = f"k{secrets.token_hex(32)}" if secure else ""
            key = fresh if store_key is None else store_key
            if servers > 1:
                cluster = EmbeddedCluster(servers, max_payload, more, store_key=key)
                embedded = cluster.servers
                await cluster.start()
                url = cluster.url
                await elected(LinkOptions(servers=url, **own.options()))
            else:
                embedded = [EmbeddedServer(port, max_payload=max_payload, more=more, store_key=key)]
                await embedded[0].start()
                url = embedded[0].url
        trusted = str(own_trust_file())
        if signer is None:
            signer = Identity.make()
            trust(signer.public, "made for this mesh", logs / "trusted")
            trusted = f"{logs / 'trusted'},{trusted}"
        verifier = Verifier(TrustedKeys.of(trusted))
        async with swarm.connect(
            url, name, shm=shm, signer=signer, verifier=verifier, **own.options()
        ) as mesh:
            report = ServerReport(mesh)
            local = LocalMesh(
                url=url,
                name=name,
                mesh=mesh,
                supervisor=supervisor,
                logs=logs,
                servers=embedded,
                report=report,
                shm=shm,
                rights=rights,
                access=access,
                trusted=trusted,
            )
            mesh.link.subscribe(mesh.subjects.status_all, local.take_status)
            await mesh.registry.prepare()
            await make_stores(mesh)
            await ensure_events(mesh.link, mesh.subjects)  # nodes may have no right to make it
            local.own(supervisor.run(), "supervisor")
            if embedded and watch_server:
                watches = [ServerWatch(server, report.teller(server.url)) for server in embedded]
                for watch in watches:
                    local.own(watch.run(), "server watch")
                local.own(report.run(watches), "server report")
            try:
                yield local
            finally:
                for task in local.tasks:
                    task.cancel()
                await asyncio.gather(*local.tasks, return_exceptions=True)
                await supervisor.stop()
    finally:
        await supervisor.stop(0.5)
        await asyncio.gather(*(server.stop() for server in embedded))
        scratch.remove()


async def push(
    local: LocalMesh,
    manifest: bytes,
    files: Mapping[str, Source],
    sent: Callable[[int], None] = lambda size: None,
) -> str:
    """Push a version that was just split, and let it serve all traffic. Returns its version."""
    local.note_asked(manifest)
    return await push_to_serve(local.mesh, manifest, files, sent)
