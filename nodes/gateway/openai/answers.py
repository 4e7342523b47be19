"""Answers of the mesh to one request of OpenAI's protocol: several at a time, as one stream."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

from nodes.gateway.call import Caller
from nodes.gateway.openai.wanted import Wanted
from swarm.errors import Internal, InvalidArgument
from swarm.generation.cascaded import CascadedGeneration
from swarm.generation.client import Generation
from swarm.generation.follow import GeneratedToken
from swarm.ids import ulid
from swarm.mesh import Mesh

AHEAD = 64  # tokens that wait for a client that reads slowly

Token = tuple[int, GeneratedToken]  # of which choice


def asked(mesh: Mesh, wanted: Wanted, version: str, caller: Caller) -> list[Generation]:
    """One answer to each choice, which begins once it is iterated. Sessions of one request whose
    seed nobody named draw by seeds that follow each other, too."""
    drawn = secrets.randbits(32)
    answers: list[Generation] = []
    for request in wanted.requests:
        sampling = request.sampling
        if not request.has_seed:
            sampling = replace(sampling, seed=sampling.seed + drawn)
        request = replace(
            request,
            session=ulid(),
            sampling=sampling,
            has_seed=True,
            version=version,
            agent=caller.agent,
        )
        given = (mesh.link, mesh.subjects, wanted.model, request)
        rule = wanted.cascade
        answers.append(Generation(*given) if rule is None else CascadedGeneration(*given, rule))
    return answers


async def together(answers: Sequence[Generation]) -> AsyncGenerator[Token, None]:
    """Tokens of all answers as they come. Leaving it ends all sessions; one that fails ends all.
    Raises as iterating a `Generation` does."""
    queue: asyncio.Queue[Token | Exception] = asyncio.Queue(AHEAD)
    tasks = [
        asyncio.create_task(_feed(queue, index, answer), name="choice")
        for index, answer in enumerate(answers)
    ]
    left = len(tasks)
    try:
        while left:
            found = await queue.get()
            if isinstance(found, Exception):
                raise found
            left -= bool(found[1].finish)
            yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _feed(queue: asyncio.Queue[Token | Exception], index: int, answer: Generation) -> None:
    try:
        async with aclosing(aiter(answer)) as tokens:
            async for token in tokens:
                if token.text is None:
                    raise InvalidArgument("model: it has no tokenizer, and gives no text")
                await queue.put((index, token))
    except Exception as error:
        await queue.put(error)


async def begun(stream: AsyncIterator[Token], choices: int) -> list[Token]:
    """The first tokens, once each choice has one: a refusal still has its status then. Raises as
    `together`."""
    first: list[Token] = []
    while len({index for index, _ in first}) < choices:
        try:
            first.append(await anext(stream))
        except StopAsyncIteration:
            raise Internal("an answer ended without a token") from None
    return first
