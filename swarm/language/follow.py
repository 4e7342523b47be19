"""How a client follows one answer: each token once, in order, whoever sends it. Pure.

The client holds the session's record too: its request, and the tokens that it has. So it can ask
again, and any node of stage 1 goes on behind them, whichever nodes have died.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from swarm.errors import (
    DeadlineExceeded,
    DecodeError,
    LinkEnded,
    NoResponders,
    ResourceExhausted,
    Status,
    SwarmError,
    error_for,
)
from swarm.language.request import GenerateRequest
from swarm.wire.maps import unpack_map

FIRST_PATIENCE, LEAST_PATIENCE, MOST_PATIENCE = 1.0, 0.3, 5.0  # seconds without a message
GAP_FACTOR = 4.0  # of the longest wait between two tokens so far
RETRY_FIRST, RETRY_MOST = 0.05, 0.5  # seconds between attempts while nobody can answer
MOST_MESSAGE = 1 << 20  # bytes
_PERHAPS_LATER = {Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED}


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the prompt, and tokens that were generated."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class GeneratedToken:
    """One token. seq: from 0 on. text: what it completes, "" for none; None where the model has no
    tokenizer. logprob, alternatives: where they were asked for.
    pieces: the texts of this token and of each alternative, each by itself, where there is a
    tokenizer: half a character is U+FFFD. finish: `stop` or `length` with the
    last one, and usage with it."""

    seq: int
    token: int
    text: str | None = None
    logprob: float | None = None
    alternatives: tuple[tuple[int, float], ...] = ()
    pieces: tuple[str, ...] = ()
    finish: str = ""
    usage: Usage | None = None


@dataclass(slots=True)
class Follower:
    """`due` says what to send and when, `take` what a message brings. A message of another session
    brings nothing: whoever asks may name this client's inbox, and nobody else can open a session of
    this id. request: with a session's id and key, and a seed. deadline: in the time that `now` is
    of. error: why it ended; None where it ended well. prompt_tokens: of the request, 0 until it is
    accepted. tokenizer: SHA-256 of the model's, "" where it has none; None while nobody has
    said."""

    request: GenerateRequest
    deadline: float
    made: list[int] = field(default_factory=list)
    done: bool = False
    error: SwarmError | None = None
    asked_again: int = 0
    prompt_tokens: int = 0
    tokenizer: str | None = None
    _epoch: int = 0
    _head: str = ""
    _news: float | None = None
    _last_token: float | None = None
    _longest: float = 0.0
    _retry: float = RETRY_FIRST
    _due: float = 0.0
    _asked: bool = False

    @property
    def accepted(self) -> bool:
        """Whether a node has said that it answers. Its word may come behind the first tokens: the
        last stage tells those by another connection."""
        return bool(self._head)

    def wake(self, now: float) -> float:
        """The moment at which `due` has to be called again."""
        return min(self.deadline, max(now, self._due))

    def due(self, now: float) -> GenerateRequest | None:
        """The request to send now; None for nothing."""
        if self.done or now < min(self._due, self.deadline):
            return None
        if now >= self.deadline:
            text = f"the budget ended behind {len(self.made)} tokens"
            self._end(DeadlineExceeded(text))
            return None
        self.asked_again += self._asked
        if self._asked and not self._head:  # nobody knows what became of the attempt before
            self._epoch += 1
        self._asked = True
        self._due = now + self._patience()
        return replace(
            self.request,
            made=tuple(self.made),
            epoch=self._epoch,
            head=self._head,
            # Rounding must not make more of the most that a request may have.
            budget=min(self.request.budget, self.deadline - now),
        )

    def lost(self, now: float) -> None:
        """The connection is back after a loss: messages may have been missed."""
        self._due = now

    def not_sent(self, error: SwarmError, now: float) -> None:
        """The request of `due` could not be sent, and perhaps never can be."""
        never = isinstance(error, ResourceExhausted) and error.retry_after == inf
        never = never or isinstance(error, LinkEnded)
        if never or error.status not in _PERHAPS_LATER:
            self._end(error)
        else:
            self._again(error, now)

    def take(self, data: bytes | memoryview, status: bytes, now: float) -> GeneratedToken | None:
        """A message came; the token that it brings, if it is the next one."""
        if self.done:
            self._behind_the_end(data)
            return None
        if status == b"503":
            text = (
                "no node serves this model's stage 1 at present, or none that this account reaches"
            )
            self._again(NoResponders(text), now)
            return None
        if not data:
            return None
        try:
            doc = _document(data)
        except DecodeError as error:
            self._end(error)
            return None
        if not self._is_own(doc):
            return None
        if "error" in doc:
            self._failed(doc, now)
            return None
        self._due = now + self._patience()
        if self._accepts(doc):
            return None
        return self._token(doc, now)

    def _is_own(self, doc: Mapping[str, Any]) -> bool:
        """Whether a message is of this session. A node that could not read a request refuses it
        without a name: that counts until the session is there."""
        nameless = "error" in doc and "session" not in doc and not (self.accepted or self.made)
        return nameless or doc.get("session") == self.request.session

    def _accepts(self, doc: Mapping[str, Any]) -> bool:
        """Note who answers, if that is what a message says."""
        if doc.get("accepted") is not True:
            return False
        self._head = str(doc.get("node", ""))[:128]
        self.request = replace(self.request, version=str(doc.get("version", ""))[:128])
        prompt = doc.get("prompt_tokens", 0)
        self.prompt_tokens = prompt if type(prompt) is int else 0
        tokenizer = doc.get("tokenizer")
        self.tokenizer = tokenizer[:64] if isinstance(tokenizer, str) else None
        epoch = doc.get("epoch", 0)
        self._epoch = max(self._epoch, epoch if type(epoch) is int else 0)
        return True

    def _behind_the_end(self, data: bytes | memoryview) -> None:
        """Who answered may be told behind the last token of a short answer. Nothing else counts."""
        if self.error is None and not self.accepted and data:
            with suppress(DecodeError):
                if self._is_own(doc := _document(data)):
                    self._accepts(doc)

    def _token(self, doc: dict[str, Any], now: float) -> GeneratedToken | None:
        try:
            token = _token(doc)
        except (KeyError, TypeError, ValueError) as error:
            self._end(DecodeError(f"a token: {error!r:.200}"))
            return None
        if token.seq > len(self.made):  # one was lost on the way: it is told again
            self._epoch += 1
            self._due = now
            return None
        if token.seq < len(self.made):
            return None
        self.made.append(token.token)
        if self._last_token is not None:
            self._longest = max(self._longest, now - self._last_token)
        self._last_token, self._retry = now, RETRY_FIRST
        self.done = bool(token.finish)
        return token

    def _failed(self, doc: dict[str, Any], now: float) -> None:
        error = error_for(str(doc.get("status", "")), str(doc["error"])[:2000], _seconds(doc))
        begun = bool(self.made) or bool(self._head)
        if error.status is Status.UNAVAILABLE or (error.status in _PERHAPS_LATER and begun):
            self._again(error, now)
        else:
            self._end(error)

    def _again(self, error: SwarmError, now: float) -> None:
        """Ask again a little later, if there is time."""
        if now + self._retry >= self.deadline:
            self._end(error)
        self._due = now + self._retry
        self._retry = min(2 * self._retry, RETRY_MOST)

    def _end(self, error: SwarmError) -> None:
        self.done, self.error = True, error

    def _patience(self) -> float:
        if self._last_token is None:
            return FIRST_PATIENCE
        return min(max(LEAST_PATIENCE, GAP_FACTOR * self._longest), MOST_PATIENCE)


def _seconds(doc: dict[str, Any]) -> float:
    """After which a refused client may ask again, 0.0 where nobody knows."""
    value = doc.get("retry_after", 0.0)
    return float(value) if type(value) in (int, float) and 0.0 <= value <= 3600.0 else 0.0


def _document(data: bytes | memoryview) -> dict[str, Any]:
    if bytes(data[:1]) != b"{":
        return unpack_map(data, MOST_MESSAGE)
    try:
        doc = json.loads(bytes(data[:MOST_MESSAGE]))
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"an answer: {error}") from None
    if not isinstance(doc, dict):
        raise DecodeError("an answer is a map")
    return doc


def _token(doc: dict[str, Any]) -> GeneratedToken:
    usage = doc.get("usage")
    pairs: Sequence[Any] = doc.get("alternatives", ())
    return GeneratedToken(
        seq=int(doc["seq"]),
        token=int(doc["token"]),
        text=None if doc.get("text") is None else str(doc["text"]),
        logprob=None if doc.get("logprob") is None else float(doc["logprob"]),
        alternatives=tuple((int(token), float(log)) for token, log in pairs),
        pieces=tuple(str(piece) for piece in doc.get("pieces", ())),
        finish=str(doc.get("finish", "")),
        usage=None
        if usage is None
        else Usage(int(usage["prompt_tokens"]), int(usage["completion_tokens"])),
    )
