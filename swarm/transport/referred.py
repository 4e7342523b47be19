"""Outputs that stay at the node that made them, until those who need them have fetched them.

A requester that passes outputs of one model on to another need not have them itself. It names them
(`Features.refer`), and the last stage answers with a `Referred` in the place of each large one: a
subject of the node's own inbox, which nobody can guess. Whoever gets that as an input asks there:

    ask      MessagePack [host, codecs that it reads, bytes a second of its link], with a reply
    answer   a result whose only output is the tensor: bytes, or a claim on shared memory
    release  a message without a reply: nobody needs the tensor any more

What is not released goes with the budget of its request, and with its node. So a reader may find
nothing, and its requester has to ask the first model again, for the tensors themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgpack
import numpy as np

from swarm.errors import DecodeError, NotFound, SwarmError
from swarm.link import Link, LinkMessage
from swarm.model import ModelInfo
from swarm.samehost.lending import NO_LOAN, Lender
from swarm.samehost.memory import ShmError
from swarm.subjects import INBOX
from swarm.transport.coding import AnswerCoder, accepts
from swarm.transport.routes import Routes
from swarm.wire.messages import Features, Result, result_parts
from swarm.wire.tensors import Referred, plain

LEAST_BYTES = 64 << 10  # of a tensor: to ask for less takes longer than to send it
MOST_BYTES, MOST = 64 << 20, 256  # of all tensors that a stage keeps, and their number
LONGEST = 30.0  # seconds for which a tensor is kept
# Seconds of a wait for a tensor, and their share of the request's budget: a node that hangs leaves
# time to compute it anew.
WITHIN, WITHIN_SHARE = 1.0, 0.25


class Referrals:
    """What one stage keeps."""

    def __init__(self, link: Link, lender: Lender, coder: AnswerCoder) -> None:
        self._link = link
        self._lender = lender
        self._coder = coder
        self._kept: dict[str, tuple[str, np.ndarray, asyncio.TimerHandle]] = {}
        self._bytes = 0

    def keep(self, features: Features, outputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """The outputs, with a `Referred` in the place of those of `features.refer` that are large
        and for which there is room. Raises `InvalidArgument` for a dtype without a datatype."""
        seconds = min(LONGEST, features.budget_us / 1e6)
        return {
            name: self._referred(name, array, seconds) if name in features.refer else array
            for name, array in outputs.items()
        }

    def _referred(self, name: str, array: np.ndarray, seconds: float) -> np.ndarray | Referred:
        room = len(self._kept) < MOST and self._bytes + array.nbytes <= MOST_BYTES
        if array.nbytes < LEAST_BYTES or not room:
            return array
        own = plain(array)
        if not own.flags.owndata:  # it may view memory that is used again
            own = own.copy()
        at = self._link.expect(self._asked)
        loop = asyncio.get_running_loop()
        self._kept[at] = name, own, loop.call_later(seconds, self._release, at)
        self._bytes += own.nbytes
        return Referred(own.dtype, own.shape, own.nbytes, at)

    def _release(self, at: str) -> None:
        self._link.forget(at)
        kept = self._kept.pop(at, None)
        if kept is not None:
            _, array, timer = kept
            timer.cancel()
            self._bytes -= array.nbytes

    def _asked(self, message: LinkMessage) -> None:
        if not message.reply:
            self._release(message.subject)
        elif INBOX.fullmatch(message.reply) is not None:
            with contextlib.suppress(SwarmError, DecodeError):  # who asks waits, and goes without
                self._answer(message)

    def _answer(self, message: LinkMessage) -> None:
        """Raises `SwarmError`."""
        name, array, _ = self._kept[message.subject]
        host, codecs, rate = _question(message.data)
        outputs = {name: array}
        here = host != "" and host == self._lender.host
        loan = self._lender.lend(outputs) if here else NO_LOAN
        with loan:
            coded = None if here else self._coder.code(outputs, codecs, rate)
            result = Result("-", outputs=outputs)
            self._link.publish(message.reply, result_parts(result, [], loan.packed, coded))


def _question(data: bytes | memoryview) -> tuple[str, str, int]:
    """Raises `DecodeError`."""
    try:
        host, codecs, rate = msgpack.unpackb(bytes(data))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise DecodeError(f"not a question for a tensor: {error}") from None
    if not (type(host) is type(codecs) is str and type(rate) is int):
        raise DecodeError("a question for a tensor has a host, codecs and a rate")
    return host, codecs, rate


async def fetch(routes: Routes, info: ModelInfo, features: Features) -> None:
    """Put the tensors in the place of those that `features` refers to. Raises `NotFound`."""
    within = min(WITHIN, features.budget_us / 1e6 * WITHIN_SHARE)
    question = msgpack.packb([routes.lender.host, *accepts(routes, info)])

    async def one(name: str, referred: Referred) -> None:
        try:
            answer = await routes.link.request(referred.at, question, within)
            result = Result.decode(answer.data)
            routes.lender.take(result.outputs)
        except (SwarmError, ShmError, TimeoutError) as error:
            text = f"the node that has input {name!r} does not give it"
            raise NotFound(f"{text}: {str(error) or f'silent for {within:.3f} s'}") from None
        array = next(iter(result.outputs.values()), None)
        if array is None or (array.dtype, array.shape) != (referred.dtype, referred.shape):
            raise NotFound(f"the node that has input {name!r} gives another tensor")
        features.tensors[name] = array
        features.codec = features.codec or result.codec

    wanted = {n: t for n, t in features.tensors.items() if type(t) is Referred}
    # All of them: one that fails leaves no other one alone.
    ends = await asyncio.gather(*(one(n, t) for n, t in wanted.items()), return_exceptions=True)
    for end in ends:
        if end is not None:
            raise end


def release(link: Link, tensors: Iterable[Referred]) -> None:
    """Nobody needs them any more."""
    for referred in tensors:
        with contextlib.suppress(SwarmError):  # then they go by their age
            link.publish(referred.at, b"")
