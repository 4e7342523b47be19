"""One answer of a cascade: nothing of it is told before it is certain who answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from swarm.errors import ResourceExhausted, SwarmError, Unavailable
from swarm.language.cascade import Cascade
from swarm.language.client import Generation, OnEnd
from swarm.language.follow import GeneratedToken
from swarm.language.keys import opened
from swarm.language.request import GenerateRequest
from swarm.link.types import Carrier
from swarm.subjects import Subjects

Tokens = AsyncGenerator[GeneratedToken, None]
_NOT_NOW = (Unavailable, ResourceExhausted, TimeoutError)


class CascadedGeneration(Generation):
    """See `Generation`. model: who answers; the small one until it is decided. degraded: the large
    one was wanted, and could not answer in time. Where the small one cannot, the large one does."""

    def __init__(
        self,
        link: Carrier,
        subjects: Subjects,
        small: str,
        request: GenerateRequest,
        rule: Cascade,
        on_end: OnEnd | None = None,
    ) -> None:
        super().__init__(link, subjects, small, request, on_end)
        self._rule = rule
        self._asked: list[Generation] = []

    @property
    def asked_again(self) -> int:
        """See `Generation`; of both models."""
        return sum(each.asked_again for each in self._asked)

    @property
    def spent(self) -> int:
        """See `Generation`; of both models."""
        return sum(each.spent for each in self._asked)

    def _ask(self, model: str, request: GenerateRequest) -> Generation:
        answer = Generation(self._link, self._subjects, model, request)
        self._asked.append(answer)
        return answer

    async def _tokens(self) -> Tokens:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.request.budget
        wish, sampling = self.request, self.request.sampling
        told = replace(sampling, alternatives=sampling.alternatives or 0)
        first = self._ask(self.model, replace(wish, sampling=told))
        async with aclosing(aiter(first)) as small:
            held, lacks = await self._beginning(small)
            if lacks is not None or self._rule.is_unsure([each.logprob or 0.0 for each in held]):
                name, _, version = self._rule.large.partition("@")
                left = max(0.0, until - loop.time())
                asked = opened(replace(wish, version=version, budget=left))
                second = self._ask(name, asked)
                async with aclosing(aiter(second)) as large:
                    try:
                        async with asyncio.timeout(self._rule.patience):
                            began = await anext(large)
                    except _NOT_NOW as error:
                        if lacks is not None:
                            raise _named(error) from lacks
                        self.degraded = True
                    else:
                        await small.aclose()
                        self.model, self.request = name, second.request
                        yield self._took(began)
                        async for token in large:
                            yield self._took(token)
                        return
            for token in held:
                yield self._took(self._asked_for(token))
            async for token in small:
                yield self._took(self._asked_for(token))

    async def _beginning(
        self, small: Tokens
    ) -> tuple[list[GeneratedToken], SwarmError | TimeoutError | None]:
        """The tokens to decide by; or why there are none."""
        held: list[GeneratedToken] = []
        try:
            async with asyncio.timeout(self._rule.patience):
                async for token in small:
                    held.append(token)
                    if len(held) == self._rule.tokens or token.finish:
                        break
        except _NOT_NOW as error:
            return [], error
        return held, None

    def _asked_for(self, token: GeneratedToken) -> GeneratedToken:
        """The token as the client wants it: with log probabilities only where it asked for them."""
        if self.request.sampling.alternatives is not None:
            return token
        return replace(token, logprob=None, alternatives=(), pieces=())


def _named(error: SwarmError | TimeoutError) -> SwarmError:
    if isinstance(error, SwarmError):
        return error
    return Unavailable("neither model of the cascade has answered in time")
