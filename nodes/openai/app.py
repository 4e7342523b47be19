"""The paths of OpenAI's protocol: `/v1/models`, `/v1/chat/completions`, `/v1/completions`."""

from __future__ import annotations

import logging
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import aclosing
from typing import Any

import orjson

from nodes.gateway import statuses
from nodes.gateway.added import GatewayContext
from nodes.gateway.call import Caller
from nodes.gateway.http.body import whole_body
from nodes.gateway.http.connection import CONNECTION, HttpBounds
from nodes.gateway.http.server import BOUNDS
from nodes.gateway.statuses import NoSuchMethod, NoSuchPath
from nodes.openai import documents
from nodes.openai.answers import Token, asked, begun, together
from nodes.openai.documents import AnswerDocument, GrowingAnswer
from nodes.openai.tool_calls import ToolStream
from nodes.openai.wanted import WantedAnswer, wanted
from swarm.errors import (
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    SwarmError,
    Unauthenticated,
    Unavailable,
)
from swarm.flow.bucket import Spending
from swarm.ids import ulid
from swarm.language.client import Generation
from swarm.language.follow import GeneratedToken
from swarm.language.request import MOST_BYTES

log = logging.getLogger("swarm.gateway")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")
EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
DONE = b"data: [DONE]\n\n"
FULL_AFTER = 1.0  # seconds: an answer takes longer than an inference


class OpenAiApp:
    """An ASGI application for paths below `/v1`, behind the HTTP door. Who cancels a call of it
    ends its sessions on all nodes."""

    def __init__(self, behind: GatewayContext, bounds: HttpBounds = BOUNDS) -> None:
        self._mesh = behind.mesh
        self._models = behind.models
        self._callers = behind.callers
        self._options = behind.options
        self._bounds = bounds
        self._on_refused = behind.on_refused
        self._sessions = 0
        self._spending = Spending()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = _Answering(send)
        try:
            await self._route(scope, receive, answering)
        except SwarmError as error:
            await self._refuse(answering, error)
        except Exception:
            log.exception("a request to %.200s failed", scope["path"])
            fault = Internal("a fault of the gateway, which its log describes")
            await self._refuse(answering, fault)

    async def _route(self, scope: Scope, receive: Receive, send: _Answering) -> None:
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        state, client = scope["state"], scope["client"] or ("", 0)
        path = scope["path"].strip("/").split("/")[1:]
        asks = path[-1:] == ["completions"]  # of what is only told, a quota counts nothing
        caller = self._callers.of(headers, client[0], state[CONNECTION].certificate, takes=asks)
        match path:
            case ["models"]:
                _only(scope, "GET")
                await send.json(documents.models(await self._names(), self._options.server_name))
            case ["models", name]:
                _only(scope, "GET")
                await self._served(*_parted(name))
                await send.json(documents.model(name, self._options.server_name))
            case ["chat", "completions"] | ["completions"]:
                _only(scope, "POST")
                seconds, holder = self._bounds.body_time, state[CONNECTION]
                body = await whole_body(headers, receive, MOST_BYTES, seconds, holder)
                try:
                    await self._complete(wanted(_object(body), len(path) == 2), caller, send)
                except ResourceExhausted as error:
                    if error.retry_after:
                        self._on_refused(caller.agent, error, client[0])
                    raise
            case _:
                raise NoSuchPath(
                    f"there is nothing at {scope['path']!r:.200}: there are /v1/models, "
                    "/v1/chat/completions and /v1/completions"
                )

    # --- models -----------------------------------------------------------------------------

    async def _names(self) -> list[str]:
        """Language models that can be asked, sorted."""
        ready = sorted({listed.name for listed in await self._models.listed() if listed.ready})
        return [name for name in ready if (await self._models.describe(name)).generates]

    async def _served(self, model: str, version: str) -> str:
        """The version that answers. Raises `NotFound`, `InvalidArgument`, `Unavailable`."""
        try:
            info = await self._models.describe(model, version)
        except NotFound:
            raise NotFound(f"the mesh has no model {model!r:.80} {version:.80}".strip()) from None
        if not info.generates:
            raise InvalidArgument(f"model: {model} is no language model; /v2 asks for it")
        if not await self._models.is_ready(model, version):
            raise Unavailable(f"no node serves one of the stages of {model}@{info.version}")
        return info.version

    # --- answers ----------------------------------------------------------------------------

    async def _complete(self, wish: WantedAnswer, caller: Caller, send: _Answering) -> None:
        versions = await self._all_served(wish)
        count = len(wish.requests)
        if wait := self._spending.owes(caller.agent, time.monotonic()):
            text = f"agent {caller.agent!r} may use {caller.tokens:g} tokens a second"
            raise ResourceExhausted(text, wait)
        if self._sessions + count > self._options.most_in_flight:
            text = f"{self._options.most_in_flight} answers are under way at this gateway"
            raise ResourceExhausted(text, FULL_AFTER)
        self._sessions += count
        answers = asked(self._mesh, wish, wish.version, caller)
        try:
            async with aclosing(together(answers)) as tokens:
                await self._answer(wish, versions, answers, tokens, send)
        finally:
            self._sessions -= count
            if caller.tokens:
                spent = sum(answer.spent for answer in answers)
                self._spending.spend(caller.agent, caller.tokens, spent, time.monotonic())

    async def _all_served(self, wish: WantedAnswer) -> dict[str, str]:
        """The versions that may answer, by the name that the client gives. Raises as `_served`; of
        a cascade one of two models will do."""
        names = [_whole_name(wish.model, wish.version)]
        names += [] if wish.cascade is None else [wish.cascade.large]
        found, lacking = {}, []
        for name in names:
            model, version = _parted(name)
            try:
                found[name] = await self._served(model, version)
            except Unavailable as error:
                lacking.append(error)
        if not found:
            raise lacking[0]
        return found

    async def _answer(
        self,
        wish: WantedAnswer,
        versions: Mapping[str, str],
        answers: Sequence[Generation],
        tokens: AsyncIterator[Token | None],
        send: _Answering,
    ) -> None:
        choices = [
            GrowingAnswer(index, ToolStream(wish.tools) if wish.tools else None)
            for index in range(len(wish.requests))
        ]
        first = await begun(tokens, len(choices))
        who = answers[0]  # of a cascade it is decided by now
        name = _whole_name(who.model, who.request.version)
        answer = AnswerDocument(
            id=("chatcmpl-" if wish.is_chat else "cmpl-") + ulid(),
            name=name,
            version=f"{who.model}@{versions.get(name, '')}",
            created=int(time.time()),
            is_chat=wish.is_chat,
            logprobs=wish.logprobs,
            degraded=who.degraded,
        )
        if wish.stream:
            if wish.is_chat:
                await send.events(*(answer.opening(choice.index) for choice in choices))
            await send.events(*(_chunk(answer, choices[at], found) for at, found in first))
            async for said in tokens:
                if said is not None:
                    await send.events(_chunk(answer, choices[said[0]], said[1]))
            usage = documents.usage_of(choices, wish.prompts)
            await send.events(*([answer.usage_chunk(usage)] if wish.with_usage else []), last=True)
            return
        for at, found in first:
            choices[at].hear(found)
        async for said in tokens:
            if said is not None:
                choices[said[0]].hear(said[1])
        await send.json(answer.whole(choices, documents.usage_of(choices, wish.prompts)))

    async def _refuse(self, send: _Answering, error: SwarmError) -> None:
        code, document = documents.refusal(error, 503 if self._options.full_is_503 else 429)
        if send.has_begun:  # the status has gone out: the error is the last event
            await send.events(document, end=True)
            return
        headers = [] if code == 400 else statuses.retry_after(error)
        if isinstance(error, Unauthenticated):
            headers.append((b"www-authenticate", b"Bearer"))
        await send.json(document, code, headers)


class _Answering:
    """The way back to one client. has_begun: a stream's status has gone out."""

    def __init__(self, send: Send) -> None:
        self.has_begun = False
        self._send = send

    async def json(self, document: Any, code: int = 200, headers: Headers | None = None) -> None:
        """A whole answer."""
        body = orjson.dumps(document)
        head = [JSON, *(headers or []), (b"content-length", b"%d" % len(body))]
        await self._start(code, head)
        await self._send({"type": "http.response.body", "body": body})

    async def events(self, *documents: Any, last: bool = False, end: bool = False) -> None:
        """Events of a stream. last: its end follows. end: the stream ends without that word."""
        if not self.has_begun:
            self.has_begun = True
            await self._start(200, [*EVENTS])
        body = b"".join(b"data: %b\n\n" % orjson.dumps(document) for document in documents)
        body += DONE if last else b""
        message = {"type": "http.response.body", "body": body}
        await self._send(message | {"more_body": not (last or end)})

    async def _start(self, code: int, headers: Headers) -> None:
        await self._send({"type": "http.response.start", "status": code, "headers": headers})


def _chunk(
    answer: AnswerDocument, choice: GrowingAnswer, found: GeneratedToken | SwarmError
) -> dict[str, Any]:
    if isinstance(found, SwarmError):
        return answer.failed_chunk(choice, found)
    return answer.chunk(choice.take(found))


def _whole_name(model: str, version: str) -> str:
    return f"{model}@{version}" if version else model


def _parted(name: str) -> tuple[str, str]:
    model, _, version = name.partition("@")
    return model, version


def _only(scope: Scope, method: str) -> None:
    if scope["method"] != method:
        raise NoSuchMethod(f"{scope['method']} is not for this path: {method} is")


def _object(body: bytes) -> dict[str, Any]:
    """Raises `InvalidArgument`."""
    try:
        document = orjson.loads(body)
    except ValueError as error:
        raise InvalidArgument(f"the body is no JSON in UTF-8: {error}") from None
    if not isinstance(document, dict):
        raise InvalidArgument("the body is an object of JSON")
    return document
