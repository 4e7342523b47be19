"""Answers of the mesh to one request of OpenAI's protocol: several at a time, as one stream."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from math import inf

from nodes.gateway.call import Caller
from nodes.gateway.openai.wanted import Wanted
from swarm.errors import Internal, InvalidArgument, ResourceExhausted, Status, SwarmError
from swarm.generation.cascaded import CascadedGeneration
from swarm.generation.client import Generation
from swarm.generation.follow import GeneratedToken
from swarm.generation.keys import opened
from swarm.mesh import Mesh

AHEAD = 64  # tokens that wait for a client that reads slowly

# Of which choice: its next token, or the fault of its own that ended it.
Token = tuple[int, GeneratedToken | SwarmError]


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
            sampling=sampling,
            has_seed=True,
            version=version,
            agent=caller.agent,
        )
        given = (mesh.link, mesh.subjects, wanted.model, opened(request))
        rule = wanted.cascade
        answers.append(Generation(*given) if rule is None else CascadedGeneration(*given, rule))
    return answers


async def together(answers: Sequence[Generation]) -> AsyncGenerator[Token, None]:
    """Tokens of all answers as they come. Leaving it ends all sessions. An answer that fails by a
    fault of its own (`is_own_fault`) ends alone, and its error stands in for its next token; one
    that fails otherwise ends all, as the last one does. Raises as iterating a `Generation` does."""
    queue: asyncio.Queue[tuple[int, GeneratedToken | Exception]] = asyncio.Queue(AHEAD)
    tasks = [
        asyncio.create_task(_feed(queue, index, answer), name="choice")
        for index, answer in enumerate(answers)
    ]
    left = well = len(tasks)
    try:
        while left:
            index, found = await queue.get()
            if isinstance(found, Exception):
                left, well = left - 1, well - 1
                if not (well and isinstance(found, SwarmError) and is_own_fault(found)):
                    raise found
            else:
                left -= bool(found.finish)
            yield index, found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def is_own_fault(error: SwarmError) -> bool:
    """Whether an answer failed by what it asks for, or by what came of it: other answers of the
    same request are none the worse, and to ask for all of them again would not help."""
    if isinstance(error, ResourceExhausted):
        return error.retry_after in (0.0, inf)  # it does not fit into the context
    return error.status in (Status.INVALID_ARGUMENT, Status.INTERNAL)


async def _feed(
    queue: asyncio.Queue[tuple[int, GeneratedToken | Exception]], index: int, answer: Generation
) -> None:
    try:
        async with aclosing(aiter(answer)) as tokens:
            async for token in tokens:
                if token.text is None:
                    raise InvalidArgument("model: it has no tokenizer, and gives no text")
                await queue.put((index, token))
    except Exception as error:
        await queue.put((index, error))


async def begun(stream: AsyncIterator[Token], choices: int) -> list[Token]:
    """The first tokens, once each choice has one or has failed: a refusal of all still has its
    status then. Raises as `together`."""
    first: list[Token] = []
    while len({index for index, _ in first}) < choices:
        try:
            first.append(await anext(stream))
        except StopAsyncIteration:
            raise Internal("an answer ended without a token") from None
    return first
