"""The requests that a node answers for any client: inferences, the fleet's view."""

from __future__ import annotations

import time
from typing import Any

import swarm
from nodes.audit import Audit
from nodes.connection.connection import Connection
from nodes.feature import Surroundings
from nodes.features import features
from nodes.requests.answering import InferAnswerer
from nodes.requests.objectives import Objectives
from nodes.requests.placer import Placer
from nodes.requests.stands_in import StandsIn
from nodes.versions.loaded import Loaded
from nodes.versions.versions import Versions
from swarm.errors import PermissionDenied
from swarm.fleet.advertised import candidates
from swarm.fleet.service import FleetAnswers
from swarm.requests.infer_service import InferService
from swarm.requests.witnessing import Notices, Witnessing
from swarm.transport.process_links import Own
from swarm.wire.messages import Request, Result
from swarm.wire.urgency import urgency_of


class RequestService:
    """`start` once the node serves, `stop` when it drains, `close` at the end. audit: None where
    nothing is recorded. around: for what features add to the node."""

    def __init__(
        self,
        connection: Connection,
        versions: Versions,
        objectives: Objectives,
        audit: Audit | None,
    ) -> None:
        config, mesh = connection.config, connection.mesh
        self._config = config
        self._most_urgent = urgency_of(config.nats_priority)
        self._objectives = objectives
        self._placer = None
        if config.edge.places:
            view = connection.peers.view
            self._placer = Placer(config.edge, mesh, lambda: candidates(view()))
        self._versions = versions
        self._stands_in = None
        if config.answers_requests and config.role not in ("gateway", "edge"):
            self._stands_in = StandsIn(mesh, config.model_name, lambda s: self._service.also(s))
        self.answerer = InferAnswerer(
            mesh,
            connection.id,
            self._lookup,
            config.budget,
            pinned=config.version,
            served=versions.served,
            placer=self._placer,
            keeps_inputs=config.role == "edge",
        )
        self.answerer.on_answered.append(objectives.answered)
        if audit is not None:
            self.answerer.on_answered.append(audit.asked)
        self._notices = Notices(mesh.link, mesh.subjects, connection.id)
        self.around = Surroundings(connection, versions, self.answerer.answer, audit)
        self._more = [
            service for each in features() for service in each.services(self.around, self._notices)
        ]
        self._fleet = FleetAnswers(mesh.link, mesh.subjects, connection.id, connection.peers.view)
        about = {"node": connection.id, "role": config.role}
        self._service = InferService(
            mesh.link,
            f"swarm-{config.mesh}",
            swarm.__version__,
            about | {"mesh": config.mesh, "model": config.model},
            self._subjects(mesh),
            self._answer,
            self._notices,
            config.budget,
        )
        takes = {"infer": self._service.take}
        takes |= {each.verb: each.take for each in self._more}
        self._witnessing = Witnessing(
            config.link,
            mesh.subjects,
            connection.id,
            connection.peers.view,
            takes,
        )
        connection.membership.on_event.append(lambda event: self._witnessing.look_again())

    def _subjects(self, mesh: swarm.Mesh) -> list[str]:
        """The subjects that any NATS client may ask this node on."""
        if not self._config.answers_requests:
            return []
        if self._config.role == "gateway":
            return [f"{mesh.subjects.root}.infer.*"]
        return [mesh.subjects.infer(self._config.model_name)]

    async def _lookup(self, model: str, version: str) -> Loaded:
        """As `Versions.lookup`, and of the models that this node stands in for."""
        if self._stands_in is not None and model in self._stands_in.models:
            return await self._stands_in.lookup(model, version)
        return await self._versions.lookup(model, version)

    async def _answer(self, model: str, request: Request) -> Result:
        if request.priority and urgency_of(request.priority) > self._most_urgent:
            most = self._config.nats_priority
            raise PermissionDenied(
                f"this node takes priority {most} at most of NATS clients (--nats-priority), and "
                f"was asked with {request.priority}"
            )
        return await self.answerer.answer(model, request)

    def start(self, own: Own) -> None:
        """Be asked from now on."""
        self._service.start()
        self._fleet.start()
        for each in self._more:
            each.start()
        if self._config.answers_requests:
            own(self._objectives.run(), "objectives")
            own(self._witnessing.run(), "witness")
        if self._stands_in is not None:
            own(self._stands_in.run(), "stands in")

    async def stop(self) -> None:
        """Take no more requests, and answer those under way."""
        self._fleet.stop()
        for each in self._more:
            await each.stop()
        await self._service.stop()
        self._notices.close()

    def close(self) -> None:
        """End the thread of stage 0, if there is one."""
        self.answerer.close()

    def status(self) -> dict[str, Any]:
        """Fields of a status document."""
        document = self._objectives.status()
        if self._config.answers_requests:
            document["requests"] = self.answerer.figures(time.monotonic())
            document["witness"] = self._witnessing.status()
        if self._placer is not None:
            document["placement"] = self._placer.status()
        return document
