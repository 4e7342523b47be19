"""A node in its mesh: who it is, its connection, what it knows of its peers, what it tells them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import Any

from nodes.config import NodeConfig
from nodes.connection.events import Events
from nodes.connection.identity import identity_of, own_id, verifier_of
from nodes.connection.mesh_key import MeshKeyFile
from nodes.connection.router import Router
from swarm.documents import Copies
from swarm.errors import LinkEnded, NotAdmitted, NotYetValid, SwarmError
from swarm.fleet.advertised import burns_entry
from swarm.fleet.events import keep_events
from swarm.fleet.membership import Membership
from swarm.fleet.peers import Peers
from swarm.mesh import Mesh
from swarm.periodic import BEAT, beat
from swarm.subjects import api
from swarm.tracing.traceparent import Tracer
from swarm.transport.process_links import Own

log = logging.getLogger("swarm.node")

CONNECT_TIMEOUT = 2.0  # seconds between two warnings that no server answers
WATCH_ADMISSION_EVERY = 5 * BEAT  # seconds
REFUSED_FOR = 5.0  # seconds; a server that restarts with half a configuration is back by then


class Connection:
    """`connect`, then `keep` what follows the mesh; `close` at the end. Gossip begins later: the
    owner runs `membership` once the node serves.

    id: the node's. identity: the key pair of `config.identity`, None without one. peers: the nodes
    that gossip knows. router: the routing policies. events: what dashboards hear of this node.
    Raises `InvalidArgument` for a file that holds no identity, or that others may read.
    """

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.id = own_id(config)
        self.identity = identity_of(config)
        self._mesh_key = MeshKeyFile(config.mesh_key)
        self._closes = False
        self.peers = Peers(self.id, config.gossip_config, self._mesh_key.accepted)
        self.router = Router(self.peers.view)
        self.mesh = Mesh(
            config.link,
            config.mesh,
            shm=config.shares_memory,
            known_peers=self.peers.serving,
            picker=self.router,
            verifier=verifier_of(config),
            codec=config.codec,
            tracer=_tracer_of(config, self.id),
            two_connections=config.two_connections,
            copies=_entry_copies(config),
        )
        self.events = Events(self.mesh.link, self.mesh.subjects, self.id, config.role)
        self.router.on_event.append(self.events.tell)
        self.membership = Membership(self.mesh.link, self.mesh.subjects, self.peers)
        self.mesh.socket.on_gone.append(self.membership.gone)

    async def connect(self, stop: asyncio.Event, own: Own) -> bool:
        """Wait for a server; returns False when `stop` came first. Raises `NotAdmitted`, but for
        `NotYetValid`, and `LinkEnded` where there can be no connection any more."""
        own(self._run_link(), "link")
        while not stop.is_set():
            try:
                await self.mesh.connected(CONNECT_TIMEOUT, own)
                return True
            except SwarmError as error:
                lasts = isinstance(error, NotAdmitted | LinkEnded)
                if lasts and not isinstance(error, NotYetValid):
                    raise  # waiting would not help
                log.warning("waiting: %s", error)
                with contextlib.suppress(TimeoutError):  # what failed may have failed at once
                    async with asyncio.timeout(CONNECT_TIMEOUT if lasts else BEAT):
                        await stop.wait()
        return False

    async def _run_link(self) -> None:
        """Raises `LinkEnded` where the link ends and this node does not: without a connection it
        serves nobody, and none would come."""
        await self.mesh.link.run()
        if not self._closes and self.mesh.link.ended is not None:
            raise self.mesh.link.ended

    def keep(self, own: Own) -> None:
        """Begin what goes on as long as the node is connected."""
        own(self.mesh.tend(), "tend")
        own(self._stay_admitted(), "admission")
        own(self._mesh_key.follow(self.membership.use_keys), "mesh key")
        own(keep_events(self.mesh.link, self.mesh.subjects), "events")

    async def _stay_admitted(self) -> None:
        """Raises `NotAdmitted` once the servers have refused this node for `REFUSED_FOR` seconds:
        its credentials were revoked, or have expired."""
        refused = 0.0
        while True:
            await beat(WATCH_ADMISSION_EVERY)
            refusal = self.mesh.link.refusal
            lasting = refusal is not None and not isinstance(refusal, NotYetValid)
            refused = refused + WATCH_ADMISSION_EVERY if lasting else 0.0
            if refusal is not None and refused >= REFUSED_FOR:
                raise refusal

    def route(self, model: str, document: dict[str, Any]) -> None:
        """Desired state of a model was read: its requests go by its policy, as far as this user's
        rights name lanes of single nodes."""
        subjects, link = self.mesh.subjects, self.mesh.link
        lane = subjects.features(model, "0", (self.config.stage or 0) + 1, self.id)
        stream = subjects.stream(model, "0", 1, link.domain)
        makes = api("CONSUMER.CREATE", stream, subjects.consumer(model, 1, self.id), lane)
        own_lanes = link.grants.may_publish(lane) and link.may_call(makes)
        self.router.apply(model, document, own_lanes)

    def burns(self, model: str, what: str) -> None:
        """Gossip which objective of a model burns where this node answers; "" for none."""
        key, value = burns_entry(model, what)
        if what:
            self.membership.set(key, value)
        else:
            self.membership.delete(key)

    async def close(self) -> None:
        """Free all of it, whatever fails on the way."""
        self._closes = True
        try:
            await self.mesh.close()
        except SwarmError as error:
            log.warning("the mesh was not closed: %s", error)
        finally:
            if self.mesh.tracer is not None:
                await asyncio.to_thread(self.mesh.tracer.close)


def _entry_copies(config: NodeConfig) -> Copies | None:
    """The copies of an edge: it can answer by itself, so it must be able to start while its link is
    cut."""
    if config.role != "edge" or not config.cache_folder:
        return None
    return Copies(Path(config.cache_folder) / "registry" / (config.link.domain or "own"))


def _tracer_of(config: NodeConfig, node: str) -> Tracer | None:
    """The tracer, None where no collector is named: OpenTelemetry is not imported then. Raises
    `InvalidArgument`."""
    if not config.otlp:
        return None
    from swarm.tracing.otel import OtlpTracer

    about = {"service.instance.id": node, "swarm.mesh": config.mesh, "swarm.role": config.role}
    return OtlpTracer(config.otlp, config.trace_share, "swarm-node", about)
