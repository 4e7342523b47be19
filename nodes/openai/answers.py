"""Answers of the mesh to one request of OpenAI's protocol: several at a time, as one stream."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from math import inf

from nodes.gateway.call import Caller
from nodes.openai.wanted import WantedAnswer
from swarm.errors import Internal, InvalidArgument, ResourceExhausted, Status, SwarmError
from swarm.language.cascaded import CascadedGeneration
from swarm.language.client import Generation
from swarm.language.follow import GeneratedToken
from swarm.language.keys import opened
from swarm.mesh import Mesh

AHEAD = 64  # tokens that wait for a client that reads slowly

# Of which choice: its next token, or the fault of its own that ended it.
Token = tuple[int, GeneratedToken | SwarmError]
# What a choice says of itself; None: it waits for its turn.
_Said = tuple[int, GeneratedToken | Exception | None]


class _Turns:
    """The choices of one request. A client has a share of the mesh's slots, and may want more
    answers than that at once: those that find no slot are asked for again as others end.

    choices: how many there are, each of which is asked for at once."""

    def __init__(self, choices: int) -> None:
        self._active = choices  # asked for, or being answered
        self._has_begun = False
        self._news = asyncio.Event()

    @property
    def is_hopeless(self) -> bool:
        """Whether every choice was refused: the request is."""
        return not self._active and not self._has_begun

    def began(self) -> None:
        """A choice has its first token."""
        self._has_begun = True

    def ended(self) -> None:
        """A choice has ended, or was refused."""
        self._active -= 1
        self._news.set()
        self._news = asyncio.Event()

    async def next(self, seconds: float) -> bool:
        """Wait until another choice ends, for `seconds` at most; whether it is one's turn then."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        if self.is_hopeless:
            return False
        self._active += 1
        return True


def asked_for(mesh: Mesh, wanted: WantedAnswer, version: str, caller: Caller) -> list[Generation]:
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


async def together(answers: Sequence[Generation]) -> AsyncGenerator[Token | None, None]:
    """Tokens of all answers as they come; None where a choice waits until another one has left its
    slot. Leaving it ends all sessions. An answer that fails by a
    fault of its own (`is_own_fault`) ends alone, and its error stands in for its next token; one
    that fails otherwise ends all, as the last one does. Raises as iterating a `Generation` does."""
    queue: asyncio.Queue[_Said] = asyncio.Queue(AHEAD)
    turns = _Turns(len(answers))
    tasks = [
        asyncio.create_task(_feed(queue, index, answer, turns), name="choice")
        for index, answer in enumerate(answers)
    ]
    left = well = len(tasks)
    try:
        while left:
            index, found = await queue.get()
            if found is None:
                yield None
                continue
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


async def _feed(queue: asyncio.Queue[_Said], index: int, answer: Generation, turns: _Turns) -> None:
    loop = asyncio.get_running_loop()
    until, waits = loop.time() + answer.request.budget, False
    while (refusal := await _ended(queue, index, answer, turns)) is not None:
        turns.ended()
        left = until - loop.time()
        if turns.is_hopeless or left <= 0:
            await queue.put((index, refusal))
            return
        if not waits:
            waits = True
            await queue.put((index, None))
        if not await turns.next(min(left, refusal.retry_after)):
            await queue.put((index, refusal))
            return
        answer.begin_anew(until - loop.time())
    turns.ended()


async def _ended(
    queue: asyncio.Queue[_Said], index: int, answer: Generation, turns: _Turns
) -> ResourceExhausted | None:
    """Pass an answer on to its end, or to its failure. Returns a refusal behind which it may be
    asked for again: it has no token yet, and found no room."""
    has_token = False
    try:
        async with aclosing(aiter(answer)) as tokens:
            async for token in tokens:
                if token.text is None:
                    raise InvalidArgument("model: it has no tokenizer, and gives no text")
                has_token = True
                turns.began()
                await queue.put((index, token))
    except ResourceExhausted as error:
        if not has_token and not is_own_fault(error):
            return error
        await queue.put((index, error))
    except Exception as error:
        await queue.put((index, error))
    return None


async def begun(stream: AsyncIterator[Token | None], choices: int) -> list[Token]:
    """The first tokens, once each choice has one, has failed, or waits for its turn: a refusal of
    all still has its status then. Raises as `together`."""
    first: list[Token] = []
    waiting = 0
    while not first or len({index for index, _ in first}) + waiting < choices:
        try:
            found = await anext(stream)
        except StopAsyncIteration:
            raise Internal("an answer ended without a token") from None
        if found is None:
            waiting += 1
        else:
            first.append(found)
    return first
