"""One answer of an ensemble: two models write it, and the client decides on each token.

Each model goes on by itself behind its own likeliest token. Where that is the ensemble's too, its
next one is on its way already; where it is not, its answer is left, and the model is asked for
another one, which begins with the tokens that are agreed on. So no node waits for another model's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from swarm.errors import InvalidArgument, ResourceExhausted, SwarmError, Unavailable
from swarm.language.client import Generation, OnEnd
from swarm.language.ensemble import Ensemble, likeliest
from swarm.language.follow import GeneratedToken, Usage
from swarm.language.keys import opened
from swarm.language.request import MOST_ALTERNATIVES, GenerateRequest
from swarm.link.types import Carrier
from swarm.subjects import Subjects

MORE = 8  # times as many alternatives, where those that are known do not decide
AGAIN_AFTER = 0.1  # seconds behind which a model without a slot is asked again
_NOT_NOW = (Unavailable, ResourceExhausted, TimeoutError)


class EnsembledGeneration(Generation):
    """See `Generation`. model: both, while both answer. degraded: one of them could not, and the
    other one goes on alone. reopened: how often a model was asked for another answer."""

    def __init__(
        self,
        link: Carrier,
        subjects: Subjects,
        model: str,
        request: GenerateRequest,
        rule: Ensemble,
        on_end: OnEnd | None = None,
    ) -> None:
        rule.check(request)
        other, _, version = rule.other.partition("@")
        super().__init__(link, subjects, f"{model}+{other}", request, on_end)
        self._rule = rule
        self._alternatives = rule.alternatives
        self._made: list[int] = []
        self._until = 0.0
        self._all = [_Voice(model, request.version), _Voice(other, version)]
        self._voices = list(self._all)

    @property
    def reopened(self) -> int:
        return sum(max(0, voice.opened - 1) for voice in self._all)

    @property
    def asked_again(self) -> int:
        """See `Generation`; of both models."""
        return sum(voice.asked_again for voice in self._all)

    @property
    def spent(self) -> int:
        """See `Generation`; of both models, with what was computed in vain."""
        return sum(voice.spent for voice in self._all)

    async def _tokens(self) -> AsyncGenerator[GeneratedToken, None]:
        self._until = asyncio.get_running_loop().time() + self.request.budget
        try:
            while not self.finish:
                teller = await self._agree()
                said = teller.said
                self._made.append(said.token)
                for voice in self._voices:
                    if voice is not teller and voice.said.token != said.token:
                        await voice.leave()
                yield self._took(self._told(said, teller.given))
        finally:
            for voice in self._voices:
                await voice.leave()

    async def _agree(self) -> _Voice:
        """Find the next token; who has said it."""
        while True:
            await self._hear(self._voices)
            if len(self._voices) == 1:
                return self._voices[0]
            first, second = (voice.said for voice in self._voices)
            token = likeliest((first.alternatives, second.alternatives), self._alternatives)
            if token is not None:
                break
            await self._widen()
        tellers = [voice for voice in self._voices if voice.said.token == token]
        if tellers:
            return next((voice for voice in tellers if voice.said.finish), tellers[0])
        for voice in self._voices:  # neither model's own: one is made to say it, with its text
            await voice.leave()
        while True:
            voice = self._voices[0]
            await self._hear([voice], token)
            if voice in self._voices:
                return voice

    async def _widen(self) -> None:
        """Ask for this token again, with more alternatives."""
        if self._alternatives == MOST_ALTERNATIVES:
            raise ResourceExhausted(
                f"ensemble: at token {len(self._made)} the {MOST_ALTERNATIVES} likeliest tokens of "
                "each model do not decide"
            )
        self._alternatives = min(MORE * self._alternatives, MOST_ALTERNATIVES)
        for voice in self._voices:
            await voice.leave()

    async def _hear(self, voices: Sequence[_Voice], first: int | None = None) -> None:
        """The next token of each; those that cannot answer are out. first: what it is to be."""

        def ask(voice: _Voice) -> Generation:
            return self._answer(voice, first)

        heard = [voice.hear(ask, self._rule.patience) for voice in voices]
        for voice, error in zip(
            list(voices), await asyncio.gather(*heard, return_exceptions=True), strict=True
        ):
            if error is None:
                continue
            await voice.leave()
            if not isinstance(error, _NOT_NOW):
                raise error
            self._voices.remove(voice)
            if not self._voices:
                raise error if isinstance(error, SwarmError) else _nobody()
            self.degraded, self.model = True, self._voices[0].model
        if len({voice.tokenizer for voice in self._voices} - {None}) > 1:
            names = " and ".join(voice.model for voice in self._voices)
            raise InvalidArgument(f"ensemble: {names} have different tokenizers")

    def _answer(self, voice: _Voice, first: int | None) -> Generation:
        wish, made = self.request, tuple(self._made)
        if made and voice.tokenizer is None:
            raise InvalidArgument(f"ensemble: a node of {voice.model} is too old for it")
        left = max(0.0, self._until - asyncio.get_running_loop().time())
        request = replace(
            wish,
            version=voice.version,
            sampling=replace(wish.sampling, alternatives=self._alternatives, first=first),
            given=made,
            max_tokens=wish.max_tokens - len(made),
            budget=left,
        )
        return Generation(self._link, self._subjects, voice.model, opened(request))

    def _told(self, said: GeneratedToken, given: int) -> GeneratedToken:
        usage = said.usage
        if usage is not None:
            usage = Usage(usage.prompt_tokens - given, len(self._made))
        seq = len(self._made) - 1
        return replace(said, seq=seq, usage=usage, logprob=None, alternatives=(), pieces=())


class _Voice:
    """One model, and its answer under way. version: that answers. said: its latest token. given:
    how many tokens its answer began with. tokenizer: see `Generation`."""

    said: GeneratedToken

    def __init__(self, model: str, version: str) -> None:
        self.model, self.version = model, version
        self.tokenizer: str | None = None
        self.given = self.opened = 0
        self._answer: Generation | None = None
        self._tokens: AsyncGenerator[GeneratedToken, None] | None = None
        self._asked_again = self._spent = 0

    @property
    def asked_again(self) -> int:
        return self._asked_again + (self._answer.asked_again if self._answer else 0)

    @property
    def spent(self) -> int:
        return self._spent + (self._answer.spent if self._answer else 0)

    async def hear(self, ask: Callable[[_Voice], Generation], patience: float) -> None:
        """Wait for the next token, of a new answer where there is none. Raises as iterating a
        `Generation` does, and `TimeoutError`."""
        async with asyncio.timeout(patience):
            while True:
                if self._tokens is None or self._answer is None:
                    self._answer = ask(self)
                    self._tokens = aiter(self._answer)
                    self.given = len(self._answer.request.given)
                    self.opened += 1
                try:
                    self.said = await anext(self._tokens)
                    await self._answer.accepted()
                except ResourceExhausted:
                    if not self.given:
                        raise
                    # Another session has taken the slot that the answer before had.
                    await self.leave()
                    await asyncio.sleep(AGAIN_AFTER)
                    continue
                self.version, self.tokenizer = self._answer.version, self._answer.tokenizer
                return

    async def leave(self) -> None:
        """End the answer on all nodes."""
        if self._tokens is not None and self._answer is not None:
            await self._tokens.aclose()
            self._asked_again += self._answer.asked_again
            self._spent += self._answer.spent
        self._tokens = self._answer = None


def _nobody() -> SwarmError:
    return Unavailable("neither model of the ensemble has answered in time")
