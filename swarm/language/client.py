"""The client of a language model: `async for token in mesh.generate("llm", "Once upon a time")`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypedDict

from swarm.errors import Internal, InvalidArgument, PermissionDenied, Status, SwarmError
from swarm.language.cascade import Cascade
from swarm.language.ensemble import Ensemble
from swarm.language.follow import Follower, GeneratedToken, Usage
from swarm.language.keys import name_of, opened
from swarm.language.request import RECOMMENDED, GenerateRequest
from swarm.language.subjects import LanguageSubjects
from swarm.link import LinkMessage
from swarm.link.types import Carrier
from swarm.subjects import Subjects

OnEnd = Callable[[str], None]


class GenerateOptions(TypedDict, total=False):
    """max_tokens: of the answer (256). fit: take fewer where the context has no room for so many
    (False). tools: of a chat, for the model's template. temperature: 0 for the likeliest token (0).
    top_p, top_k, repetition_penalty: as in `swarm.language.request.Sampling`. seed: None for a
    new one, which `Generation.request` tells. stop: strings that end the answer, which is cut
    before them. stop_ids: token ids that do. logprobs: how many alternatives to tell with each
    token, beside its own log probability; None for neither. recommended: temperature, top_p, top_k
    and repetition_penalty that are not named are those that the model's owner recommends (False).
    budget: seconds for all (120). schema: a JSON schema, as a map or its text: the answer is JSON
    that it allows, unless `max_tokens` or `stop` cut it. cascade: a larger model that answers where
    this one is unsure, by name or with a rule of its own; token ids must mean the same to both.
    ensemble: another model of the same tokenizer, by name or with a rule: each token is the one
    whose mean probability is the largest."""

    max_tokens: int
    fit: bool
    tools: Sequence[Mapping[str, Any]]
    temperature: float
    top_p: float
    top_k: int
    repetition_penalty: float
    seed: int | None
    stop: str | Sequence[str]
    stop_ids: Sequence[int]
    logprobs: int | None
    recommended: bool
    budget: float
    schema: Mapping[str, Any] | str
    cascade: Cascade | str
    ensemble: Ensemble | str


@dataclass(frozen=True, slots=True)
class Generated:
    """A whole answer. text: "" where the model has no tokenizer. finish: `stop` or `length`.
    model, degraded: see `Generation`."""

    text: str
    tokens: tuple[int, ...]
    finish: str
    usage: Usage
    model: str = ""
    degraded: bool = False


class Generation:
    """One answer under way. Iterate it once, or `await` its `whole()`. A loop that is left ends the
    session on all nodes.

    on_end: hears the status of an answer that came to its end, and of a failure; not of a loop that
    was left. request: as it is sent, with its session's id and key, and its seed. text: what has
    come so far. usage, finish: None and "" until the last token has come. asked_again: how often
    the mesh was asked again. model: that answers; of an ensemble both, joined by "+". degraded: of
    a cascade, another one should have; of an ensemble, only one did."""

    def __init__(
        self,
        link: Carrier,
        subjects: Subjects,
        model: str,
        request: GenerateRequest,
        on_end: OnEnd | None = None,
    ) -> None:
        self._on_end = on_end
        self.request = request
        self.text = ""
        self.usage: Usage | None = None
        self.finish = ""
        self.model = model
        self.degraded = False
        self._link = link
        self._subjects = LanguageSubjects.of(subjects)
        self._follower = Follower(request, 0.0)
        self._news, self._accepted = asyncio.Event(), asyncio.Event()
        # Bounded by the tokens that were asked for.
        self._come: deque[GeneratedToken] = deque(maxlen=request.max_tokens)
        self._begun = False

    @property
    def asked_again(self) -> int:
        return self._follower.asked_again

    @property
    def version(self) -> str:
        """That answers; what was asked for, "" for any, until a node has said."""
        return self._follower.request.version

    @property
    def tokenizer(self) -> str | None:
        """SHA-256 of the model's tokenizer, "" where it has none; None while nobody has said."""
        return self._follower.tokenizer

    async def accepted(self) -> None:
        """Wait until a node has said that it answers: `version` and `tokenizer` are known then. Its
        word may be lost, and nobody says it for a cascade or an ensemble: the caller bounds it."""
        await self._accepted.wait()

    @property
    def spent(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return self._follower.prompt_tokens + len(self._follower.made)

    def __aiter__(self) -> AsyncGenerator[GeneratedToken, None]:
        if self._begun:
            raise InvalidArgument("an answer is read once: ask again for another one")
        self._begun = True
        return self._tokens() if self._on_end is None else self._told_to(self._on_end)

    async def _told_to(self, on_end: OnEnd) -> AsyncGenerator[GeneratedToken, None]:
        try:
            async with aclosing(self._tokens()) as tokens:
                async for token in tokens:
                    yield token
        except SwarmError as error:
            on_end(str(error.status))
            raise
        on_end(str(Status.OK))

    def begin_anew(self, budget: float) -> None:
        """After a refusal before the first token: another session, which may be iterated once, and
        has so many seconds."""
        self.request = opened(replace(self.request, budget=max(0.0, budget)))
        self._follower = Follower(self.request, 0.0)
        self._begun = False

    async def whole(self) -> Generated:
        """Wait for the whole answer. Raises as iterating does."""
        tokens = [token.token async for token in self]
        if self.usage is None:
            raise Internal("the answer has no end")
        return Generated(
            self.text, tuple(tokens), self.finish, self.usage, self.model, self.degraded
        )

    async def _tokens(self) -> AsyncGenerator[GeneratedToken, None]:
        loop, follower = asyncio.get_running_loop(), self._follower
        follower.deadline = loop.time() + self.request.budget
        subject = self._subjects.generate(self.model)
        reply = self._link.expect(self._on_message)
        self._link.on_up.append(self._reconnected)
        self._link.on_denied.append(self._denied)
        try:
            while True:
                while self._come:
                    yield self._took(self._come.popleft())
                if follower.error is not None:
                    raise follower.error
                if follower.done:
                    return
                if (request := follower.due(loop.time())) is not None:
                    try:
                        self._link.publish(subject, request.encode(), reply)
                    except SwarmError as error:
                        follower.not_sent(error, loop.time())
                        continue
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(follower.wake(loop.time())):
                        await self._news.wait()
                self._news.clear()
        finally:
            self._link.on_denied.remove(self._denied)
            self._link.on_up.remove(self._reconnected)
            self._link.forget(reply)
            if not follower.done:
                self._cancel()

    def _took(self, token: GeneratedToken) -> GeneratedToken:
        self.text += token.text or ""
        self.usage, self.finish = token.usage, token.finish
        return token

    def _on_message(self, message: LinkMessage) -> None:
        now = asyncio.get_running_loop().time()
        token = self._follower.take(message.data, message.status, now)
        if token is not None:
            self._come.append(token)
        if self._follower.accepted:
            self._accepted.set()
        self._news.set()

    def _reconnected(self) -> None:
        self._follower.lost(asyncio.get_running_loop().time())
        self._news.set()

    def _denied(self, subject: str, error: PermissionDenied) -> None:
        """This user may not ask for tokens of the model: nobody will answer."""
        if subject == self._subjects.generate(self.model) and not self._follower.done:
            self._follower.not_sent(error, asyncio.get_running_loop().time())
            self._news.set()

    def _cancel(self) -> None:
        """Free the slots on all stages, as far as this user may say so; else they free themselves
        once their sessions are idle."""
        version = self._follower.request.version
        if not version:
            return
        subject = self._subjects.cancel(self.model, version)
        if self._link.grants.may_publish(subject):
            with contextlib.suppress(SwarmError):
                self._link.publish(subject, name_of(self.request.key).encode())


class AsksForTokens(Protocol):
    """What asks for tokens: a mesh. One that counts what its requests came to has `observed`."""

    @property
    def link(self) -> Carrier: ...

    @property
    def subjects(self) -> Subjects: ...

    @property
    def agent(self) -> str: ...


def generate(
    asks: AsksForTokens,
    model: str,
    prompt: str | Sequence[int] | Sequence[Mapping[str, Any]],
    options: GenerateOptions,
) -> Generation:
    """An answer to be iterated. prompt: text, token ids, or the messages of a chat. Raises
    `InvalidArgument`."""
    link, subjects, observed = asks.link, asks.subjects, getattr(asks, "observed", None)
    given = dict(options)
    seed = given.pop("seed", None)
    cascade, ensemble = given.pop("cascade", None), given.pop("ensemble", None)
    doc: dict[str, Any] = {
        "alternatives": given.pop("logprobs", None),
        "seed": secrets.randbits(32) if seed is None else seed,
        "agent": asks.agent,
    }
    if given.pop("recommended", False):
        doc["recommended"] = [name for name in RECOMMENDED if name not in given]
    unknown = given.keys() - GenerateOptions.__annotations__.keys()
    if unknown:
        raise InvalidArgument(f"unknown options: {', '.join(sorted(unknown))}")
    doc |= {name: list(v) if isinstance(v, tuple) else v for name, v in given.items()}
    if isinstance(prompt, str):
        doc["text"] = prompt
    elif prompt and isinstance(prompt[0], Mapping):
        doc["messages"] = [dict(message) for message in prompt if isinstance(message, Mapping)]
    else:
        doc["prompt"] = [int(one) for one in prompt if not isinstance(one, Mapping)]
    name, _, version = model.partition("@")
    request = opened(replace(GenerateRequest.read(doc), version=version))
    on_end = None if observed is None else partial(observed.note, name)
    if ensemble is not None:
        from swarm.language.ensembled import EnsembledGeneration  # it is a `Generation` itself

        if cascade is not None:
            raise InvalidArgument("ensemble: it goes with no cascade")
        both = ensemble if isinstance(ensemble, Ensemble) else Ensemble(str(ensemble))
        return EnsembledGeneration(link, subjects, name, request, both, on_end)
    if cascade is None:
        return Generation(link, subjects, name, request, on_end)
    from swarm.language.cascaded import CascadedGeneration  # so is this one

    rule = cascade if isinstance(cascade, Cascade) else Cascade(str(cascade))
    return CascadedGeneration(link, subjects, name, request, rule, on_end)
