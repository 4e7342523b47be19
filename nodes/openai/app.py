"""The paths of OpenAI's protocol: `/v1/models`, `/v1/chat/completions`, `/v1/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import orjson

from nodes.gateway.added import GatewayContext
from nodes.gateway.call import Caller
from nodes.gateway.http.application import HttpApplication, HttpRequest
from nodes.openai import documents
from nodes.openai.answers import Token, asked_for, begun, together
from nodes.openai.documents import AnswerDocument, GrowingAnswer
from nodes.openai.tool_calls import ToolStream
from nodes.openai.wanted import WantedAnswer, wanted
from swarm.errors import InvalidArgument, NotFound, ResourceExhausted, SwarmError, Unavailable
from swarm.flow.bucket import Spending
from swarm.ids import ulid
from swarm.language.client import Generation
from swarm.language.follow import GeneratedToken
from swarm.language.request import MOST_BYTES

EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
DONE = b"data: [DONE]\n\n"
FULL_AFTER = 1.0  # seconds: an answer takes longer than an inference


class OpenAiApp(HttpApplication):
    """Answers below `/v1`, behind the HTTP door. Who cancels a call of it ends its sessions on all
    nodes."""

    def __init__(self, behind: GatewayContext) -> None:
        super().__init__(behind.callers, behind.options)
        self._options = behind.options
        self._mesh = behind.mesh
        self._models = behind.models
        self._on_refused = behind.on_refused
        self._sessions = 0
        self._spending = Spending()

    async def answer(self, asked: HttpRequest) -> None:
        path, owner = asked.path[1:], self._options.server_name
        asks = path[-1:] == ["completions"]  # of what is only told, a quota counts nothing
        caller = self.caller(asked, takes=asks)
        match path:
            case ["models"]:
                asked.only("GET")
                await asked.json(documents.models(await self._names(), owner))
            case ["models", name]:
                asked.only("GET")
                await self._served(*_parted(name))
                await asked.json(documents.model(name, owner))
            case ["chat", "completions"] | ["completions"]:
                asked.only("POST")
                document = await asked.document(MOST_BYTES)
                try:
                    await self._complete(wanted(document, len(path) == 2), caller, asked)
                except ResourceExhausted as error:
                    if error.retry_after:
                        self._on_refused(caller.agent, error, asked.peer)
                    raise
            case _:
                raise asked.nothing()

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

    async def _complete(self, wish: WantedAnswer, caller: Caller, asked: HttpRequest) -> None:
        versions = await self._all_served(wish)
        count = len(wish.requests)
        most = caller.quotas.get("tokens", 0.0)
        if wait := self._spending.owes(caller.agent, time.monotonic()):
            text = f"agent {caller.agent!r} may use {most:g} tokens a second"
            raise ResourceExhausted(text, wait)
        if self._sessions + count > self._options.most_in_flight:
            text = f"{self._options.most_in_flight} answers are under way at this gateway"
            raise ResourceExhausted(text, FULL_AFTER)
        self._sessions += count
        answers = asked_for(self._mesh, wish, wish.version, caller)
        try:
            async with aclosing(together(answers)) as tokens:
                await self._answer(wish, versions, answers, tokens, asked)
        finally:
            self._sessions -= count
            if most:
                spent = sum(answer.spent for answer in answers)
                self._spending.spend(caller.agent, most, spent, time.monotonic())

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
        asked: HttpRequest,
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
            await asked.begin(EVENTS)
            if wish.is_chat:
                await _events(asked, *(answer.opening(choice.index) for choice in choices))
            await _events(asked, *(_chunk(answer, choices[at], found) for at, found in first))
            async for said in tokens:
                if said is not None:
                    await _events(asked, _chunk(answer, choices[said[0]], said[1]))
            usage = documents.usage_of(choices, wish.prompts)
            last = [answer.usage_chunk(usage)] if wish.with_usage else []
            await _events(asked, *last, end=DONE)
            return
        for at, found in first:
            choices[at].hear(found)
        async for said in tokens:
            if said is not None:
                choices[said[0]].hear(said[1])
        await asked.json(answer.whole(choices, documents.usage_of(choices, wish.prompts)))

    def told(self, error: SwarmError) -> tuple[int, Any]:
        return documents.refusal(error, self._full)

    async def refuse(self, asked: HttpRequest, error: SwarmError) -> None:
        if not asked.has_begun:
            await super().refuse(asked, error)
            return
        await _events(asked, self.told(error)[1], end=b"")  # the status has gone out


async def _events(asked: HttpRequest, *documents: Any, end: bytes | None = None) -> None:
    """Events of a stream. end: what stands behind them where they are the last ones."""
    events = b"".join(b"data: %b\n\n" % orjson.dumps(document) for document in documents)
    await asked.piece(events + (end or b""), more=end is None)


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
