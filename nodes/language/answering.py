"""Requests for tokens at this node, from any NATS client: read, and given to stage 1."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from nodes.versions.serving import Serving
from swarm.errors import Internal, NotFound, ResourceExhausted, SwarmError
from swarm.language.admission import AGAIN_AFTER
from swarm.language.keys import admitted, session_id
from swarm.language.request import GenerateRequest, is_json, request_map
from swarm.language.subjects import LanguageSubjects
from swarm.link import LinkMessage
from swarm.mesh import Mesh
from swarm.requests.infer_service import service_error
from swarm.requests.witness import key_of
from swarm.requests.witnessing import Notices
from swarm.wire.maps import pack

if TYPE_CHECKING:  # a node without language models needs none of it
    from nodes.language.server import GenerationServer
    from nodes.language.serving import GenerationServing

log = logging.getLogger("swarm.language")

QUEUE = "q"  # one of the nodes of stage 1 gets a request
MOST_UNREAD = 1024  # requests that have come, and are not read yet
SLICE = 0.0005  # seconds of reading, then as many for tokens of others


class GenerateService:
    """`start` once the node serves, `stop` when it drains. servings(): the versions served here.
    notices: tell the witnesses what was read: of an answer that has begun, its client asks for the
    rest itself."""

    def __init__(
        self,
        mesh: Mesh,
        model: str,
        servings: Callable[[], list[Serving]],
        notices: Notices,
    ) -> None:
        self._link = mesh.link
        self._subject = LanguageSubjects.of(mesh.subjects).generate(model)
        self._model = model
        self._servings = servings
        self._notices = notices
        self._sid = 0
        self._unread: deque[tuple[bytes, str]] = deque()

    verb = "generate"

    def start(self) -> None:
        """Be asked from now on, if a language model is served here."""
        if any(serving.stages for serving in self._generating()):
            self._sid = self._link.subscribe(self._subject, self._asked, QUEUE)

    async def stop(self) -> None:
        """Take no more requests."""
        if self._sid:
            await self._link.unsubscribe_and_drain(self._sid)
        while self._unread:
            self._read()

    def take(self, message: LinkMessage, waited: float) -> None:
        """Answer a request in the place of a node that has not begun, for `waited` seconds."""
        self._asked(message)

    def _asked(self, message: LinkMessage) -> None:
        if not message.reply:
            return
        key = key_of(message.reply, message.data)
        self._notices.began(self._model, key)
        self._notices.ended(self._model, key)
        if len(self._unread) >= MOST_UNREAD:
            text = f"{MOST_UNREAD} requests wait to be read at this node"
            self._refuse(message.data, message.reply, ResourceExhausted(text, AGAIN_AFTER))
            return
        self._unread.append((bytes(message.data), message.reply))
        if len(self._unread) == 1:
            asyncio.get_running_loop().call_soon(self._read)

    def _read(self) -> None:
        """Read requests for a moment; tokens of others go on before the next ones."""
        until = time.monotonic() + SLICE
        while self._unread:
            self._take(*self._unread.popleft())
            if time.monotonic() >= until:
                break
        if self._unread:
            asyncio.get_running_loop().call_later(SLICE, self._read)

    def _take(self, data: bytes, reply: str) -> None:
        doc: dict[str, object] = {}
        try:
            doc, as_json = request_map(data)
            request = replace(GenerateRequest.read(doc), json=as_json)
            self._head(request.version).ask(admitted(request), reply)
        except SwarmError as error:
            self._refuse(data, reply, error, session_id(doc.get("key")))
        except Exception:
            log.exception("a request for tokens failed")
            fault = Internal("a fault of the node, which its log describes")
            self._refuse(data, reply, fault, session_id(doc.get("key")))

    def _refuse(
        self, data: bytes | memoryview, reply: str, error: SwarmError, session: str = ""
    ) -> None:
        """Answer a request, in its own form. session: its id, "" where it shows no key."""
        doc: dict[str, object] = {"v": 1, "error": str(error), "status": str(error.status)}
        doc |= {"session": session} if session else {}
        if isinstance(error, ResourceExhausted) and error.retry_after:
            doc["retry_after"] = error.retry_after
        answer = json.dumps(doc).encode() if is_json(data) else pack(doc)
        try:
            self._link.publish(reply, answer, headers=service_error(error.status, str(error)))
            self._link.publish(reply)
        except SwarmError as failure:
            log.info("a refusal could not be sent: %s", failure)

    def _generating(self) -> list[GenerationServing]:
        return [
            cast("GenerationServing", serving)
            for serving in self._servings()
            if serving.info.generates
        ]

    def _head(self, version: str) -> GenerationServer:
        """Stage 1 of a version that is served here, the newest by its loading. Raises
        `NotFound`."""
        heads = [
            server
            for serving in self._generating()
            for server in serving.generation
            if server.stage == 1 and version in ("", serving.info.version)
        ]
        if not heads:
            raise NotFound(f"{self._model}@{version or 'any'} is not served by this node")
        return heads[-1]
