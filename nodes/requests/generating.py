"""Requests for tokens at this node, from any NATS client: parsed, tokenized, given to stage 1."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import replace

from nodes.generation.server import GenerationServer
from nodes.versions.serving import Serving
from swarm.errors import Internal, InvalidArgument, NotFound, SwarmError
from swarm.generation.request import GenerateRequest
from swarm.ids import ulid
from swarm.link import LinkMessage
from swarm.mesh import Mesh
from swarm.requests.infer_service import service_error
from swarm.wire.maps import pack

log = logging.getLogger("swarm.generation")

QUEUE = "q"  # one of the nodes of stage 1 gets a request


class GenerateService:
    """`start` once the node serves, `stop` when it drains. servings(): the versions served here."""

    def __init__(self, mesh: Mesh, model: str, servings: Callable[[], list[Serving]]) -> None:
        self._link = mesh.link
        self._subject = mesh.subjects.generate(model)
        self._model = model
        self._servings = servings
        self._sid = 0

    def start(self) -> None:
        """Be asked from now on, if a language model is served here."""
        if any(serving.generation for serving in self._servings()):
            self._sid = self._link.subscribe(self._subject, self._asked, QUEUE)

    async def stop(self) -> None:
        """Take no more requests."""
        if self._sid:
            await self._link.unsubscribe_and_drain(self._sid)

    def _asked(self, message: LinkMessage) -> None:
        if not message.reply:
            return
        try:
            request = GenerateRequest.decode(message.data)
            server = self._head(request.version)
            server.ask(self._prepared(request, server), message.reply)
        except SwarmError as error:
            self._refuse(message.reply, error)
        except Exception:
            log.exception("a request for tokens failed")
            self._refuse(message.reply, Internal("a fault of the node, which its log describes"))

    def _refuse(self, reply: str, error: SwarmError) -> None:
        doc = pack({"v": 1, "error": str(error), "status": str(error.status)})
        try:
            self._link.publish(reply, doc, headers=service_error(error.status, str(error)))
            self._link.publish(reply)
        except SwarmError as failure:
            log.info("a refusal could not be sent: %s", failure)

    def _head(self, version: str) -> GenerationServer:
        """Stage 1 of a version that is served here, the newest by its loading. Raises
        `NotFound`."""
        heads = [
            server
            for serving in self._servings()
            for server in serving.generation
            if server.stage == 1 and version in ("", serving.info.version)
        ]
        if not heads:
            raise NotFound(f"{self._model}@{version or 'any'} is not served by this node")
        return heads[-1]

    def _prepared(self, request: GenerateRequest, server: GenerationServer) -> GenerateRequest:
        """The request with ids as its prompt, a session and a seed. Raises `InvalidArgument`."""
        if request.text is not None or request.messages:
            raise InvalidArgument(
                f"{self._model} has no tokenizer here: give the prompt as token ids"
            )
        if request.stops:
            raise InvalidArgument(f"{self._model} has no tokenizer here: stop by stop_ids")
        if not request.has_seed:
            sampling = replace(request.sampling, seed=secrets.randbits(32))
            request = replace(request, sampling=sampling, has_seed=True)
        stop_ids = tuple(dict.fromkeys([*request.stop_ids, *server.end_tokens]))
        return replace(request, session=request.session or ulid(), stop_ids=stop_ids)
