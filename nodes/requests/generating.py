"""Requests for tokens at this node, from any NATS client: parsed, tokenized, given to stage 1."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace

from nodes.generation.prompts import characters, with_ids
from nodes.generation.server import GenerationServer
from nodes.versions.serving import Serving
from swarm.errors import Internal, NotFound, ResourceExhausted, SwarmError
from swarm.generation.request import GenerateRequest
from swarm.ids import ulid
from swarm.link import LinkMessage
from swarm.mesh import Mesh
from swarm.requests.infer_service import service_error
from swarm.wire.maps import pack

log = logging.getLogger("swarm.generation")

QUEUE = "q"  # one of the nodes of stage 1 gets a request
INLINE = 4096  # characters; a longer text is made token ids of in a thread
MOST_PREPARING = 16  # such texts at a time
PREPARED_WITHIN = 2.0  # seconds that an ending node waits for them


class GenerateService:
    """`start` once the node serves, `stop` when it drains. servings(): the versions served here."""

    def __init__(self, mesh: Mesh, model: str, servings: Callable[[], list[Serving]]) -> None:
        self._link = mesh.link
        self._subject = mesh.subjects.generate(model)
        self._model = model
        self._servings = servings
        self._sid = 0
        self._preparing: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Be asked from now on, if a language model is served here."""
        if any(serving.generation for serving in self._servings()):
            self._sid = self._link.subscribe(self._subject, self._asked, QUEUE)

    async def stop(self) -> None:
        """Take no more requests."""
        if self._sid:
            await self._link.unsubscribe_and_drain(self._sid)
        if self._preparing:
            await asyncio.wait(self._preparing, timeout=PREPARED_WITHIN)

    def _asked(self, message: LinkMessage) -> None:
        if not message.reply:
            return
        try:
            request = GenerateRequest.decode(message.data)
            server = self._head(request.version)
            if characters(request) > INLINE:
                self._prepare_aside(request, server, message.reply)
                return
            server.ask(self._prepared(request, server), message.reply)
        except SwarmError as error:
            self._refuse(message.reply, error)
        except Exception:
            log.exception("a request for tokens failed")
            self._refuse(message.reply, Internal("a fault of the node, which its log describes"))

    def _prepare_aside(
        self, request: GenerateRequest, server: GenerationServer, reply: str
    ) -> None:
        """Tokenize a long text in a thread: tokens of others go on. Raises `ResourceExhausted`."""
        if len(self._preparing) >= MOST_PREPARING:
            text = f"{MOST_PREPARING} long prompts are being read at this node"
            raise ResourceExhausted(text, 1.0)
        task = asyncio.create_task(self._prepare(request, server, reply), name="prompt")
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)

    async def _prepare(
        self, request: GenerateRequest, server: GenerationServer, reply: str
    ) -> None:
        try:
            server.ask(await asyncio.to_thread(self._prepared, request, server), reply)
        except SwarmError as error:
            self._refuse(reply, error)
        except Exception:
            log.exception("a request for tokens failed")
            self._refuse(reply, Internal("a fault of the node, which its log describes"))

    def _refuse(self, reply: str, error: SwarmError) -> None:
        doc: dict[str, object] = {"v": 1, "error": str(error), "status": str(error.status)}
        if isinstance(error, ResourceExhausted) and error.retry_after:
            doc["retry_after"] = error.retry_after
        try:
            self._link.publish(reply, pack(doc), headers=service_error(error.status, str(error)))
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
        request = with_ids(request, server.texts, f"{self._model}@{server.info.version}")
        room = server.decoder.context - len(request.prompt)
        if request.fit and room > 0:
            request = replace(request, max_tokens=min(request.max_tokens, room))
        if not request.has_seed:
            sampling = replace(request.sampling, seed=secrets.randbits(32))
            request = replace(request, sampling=sampling, has_seed=True)
        stop_ids = tuple(dict.fromkeys([*request.stop_ids, *server.end_tokens]))
        return replace(request, session=request.session or ulid(), stop_ids=stop_ids)
