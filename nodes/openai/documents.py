"""Answers in OpenAI's shapes, as its library's types have them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from nodes.gateway import statuses
from nodes.openai.tool_calls import ToolCall, ToolStream
from swarm.errors import ResourceExhausted, Status, SwarmError
from swarm.language.follow import GeneratedToken

_HALF = "\ufffd"  # a token by itself may be half a character: its bytes are not known then
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


@dataclass(frozen=True, slots=True)
class Grown:
    """What a token adds to its choice. text: that is no call of a tool. calls: that end with it,
    the first one at `first` among those of the choice. offset: characters before the token."""

    index: int
    token: GeneratedToken
    offset: int
    text: str
    calls: tuple[ToolCall, ...]
    first: int
    finish: str


@dataclass(slots=True)
class GrowingAnswer:
    """One answer as it grows. tools: what finds calls in it, None where there are no tools. offset:
    characters that have come. said: those that are no calls. error: that ended this one alone."""

    index: int
    tools: ToolStream | None = None
    tokens: list[GeneratedToken] = field(default_factory=list)
    offset: int = 0
    said: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    error: SwarmError | None = None

    def take(self, token: GeneratedToken) -> Grown:
        """One more token."""
        text, calls = token.text or "", list[ToolCall]()
        if self.tools is not None:
            text, calls = self.tools.push(text)
            if token.finish:
                rest, more = self.tools.end(cut=token.finish == "length")
                text, calls = text + rest, calls + more
        offset, first = self.offset, len(self.calls)
        self.tokens.append(token)
        self.offset += len(token.text or "")
        self.said += text
        self.calls += calls
        return Grown(self.index, token, offset, text, tuple(calls), first, self.finish)

    def hear(self, found: GeneratedToken | SwarmError) -> None:
        """One more token, or what ended it."""
        if isinstance(found, SwarmError):
            self.error = found
        else:
            self.take(found)

    @property
    def finish(self) -> str:
        """Why it has ended, "" while it goes on."""
        if self.error is not None:
            return "error"
        finish = self.tokens[-1].finish
        return "tool_calls" if self.calls and finish == "stop" else finish


@dataclass(frozen=True, slots=True)
class AnswerDocument:
    """What all documents of an answer have in common. name: the model's, as the client wrote it.
    version: that answers, `NAME@VERSION`. created: seconds since 1970. degraded: of a cascade, a
    larger model should have answered."""

    id: str
    name: str
    version: str
    created: int
    is_chat: bool
    logprobs: bool
    degraded: bool = False

    def opening(self, index: int) -> dict[str, Any]:
        """The chunk that begins a choice of a chat."""
        choice = {"index": index, "delta": {"role": "assistant", "content": ""}}
        return self._chunk([choice | {"logprobs": None, "finish_reason": None}])

    def chunk(self, grown: Grown) -> dict[str, Any]:
        """The chunk of one token."""
        piece: dict[str, Any] = {"index": grown.index, "finish_reason": grown.finish or None}
        delta: dict[str, Any] = {}
        if grown.text or not grown.calls:
            delta["content"] = grown.text
        if grown.calls:
            delta["tool_calls"] = [
                {"index": at} | self._call(grown.index, at, call)
                for at, call in enumerate(grown.calls, grown.first)
            ]
        piece |= {"delta": delta} if self.is_chat else {"text": grown.text}
        return self._chunk([piece | {"logprobs": self._logprobs([grown.token], grown.offset)}])

    def failed_chunk(self, choice: GrowingAnswer, error: SwarmError) -> dict[str, Any]:
        """The chunk that ends one choice of several by a fault of its own."""
        choice.hear(error)
        piece: dict[str, Any] = {"index": choice.index, "logprobs": None}
        piece["finish_reason"] = choice.finish
        said: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": ""}
        return self._chunk([piece | said | refusal(error)[1]])

    def usage_chunk(self, usage: dict[str, int]) -> dict[str, Any]:
        """The last chunk, for a client that asks for it."""
        return self._chunk([]) | {"usage": usage}

    def whole(self, choices: Sequence[GrowingAnswer], usage: dict[str, int]) -> dict[str, Any]:
        """The answer in one piece."""
        found = []
        for choice in choices:
            one: dict[str, Any] = {"index": choice.index}
            one["finish_reason"] = choice.finish
            if self.is_chat:
                one["message"] = self._message(choice)
            else:
                one["text"] = choice.said
            one["logprobs"] = self._logprobs(choice.tokens, 0)
            found.append(one if choice.error is None else one | refusal(choice.error)[1])
        kind = "chat.completion" if self.is_chat else "text_completion"
        return self._document(kind) | {"choices": found, "usage": usage}

    def _message(self, choice: GrowingAnswer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.said, "refusal": None}
        if choice.calls:
            message["content"] = choice.said or None
            message["tool_calls"] = [
                self._call(choice.index, at, call) for at, call in enumerate(choice.calls)
            ]
        return message

    def _call(self, index: int, at: int, call: ToolCall) -> dict[str, Any]:
        function = {"name": call.name, "arguments": call.arguments}
        name = f"call_{self.id.partition('-')[2]}_{index}_{at}"
        return {"id": name, "type": "function", "function": function}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.is_chat else "text_completion"
        return self._document(kind) | {"choices": choices}

    def _document(self, kind: str) -> dict[str, Any]:
        doc = {"id": self.id, "object": kind, "created": self.created, "model": self.name}
        doc["system_fingerprint"] = self.version
        return doc | ({"degraded": True} if self.degraded else {})

    def _logprobs(self, tokens: Sequence[GeneratedToken], offset: int) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        if self.is_chat:
            return {"content": [_content(token) for token in tokens], "refusal": None}
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token.text or "")
        return {
            "tokens": [_piece(token, 0) for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                {_piece(token, at): log for at, (_, log) in enumerate(token.alternatives, 1)}
                for token in tokens
            ],
            "text_offset": offsets,
        }


def usage_of(choices: Iterable[GrowingAnswer], prompts: int) -> dict[str, int]:
    """Tokens of each prompt once, and of all answers. prompts: how many there are."""
    ended = list(choices)
    each = max(1, len(ended) // prompts)
    last = [choice.tokens[-1].usage if choice.tokens else None for choice in ended]
    alike = [last[at : at + each] for at in range(0, len(last), each)]
    of_prompts = [next((usage for usage in same if usage is not None), None) for same in alike]
    prompt = sum(usage.prompt_tokens for usage in of_prompts if usage is not None)
    made = sum(
        len(choice.tokens) if usage is None else usage.completion_tokens
        for choice, usage in zip(ended, last, strict=True)
    )
    return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}


def models(names: Iterable[str], owner: str) -> dict[str, Any]:
    """The list of models. owner: the gateway's name."""
    return {"object": "list", "data": [model(name, owner) for name in names]}


def model(name: str, owner: str) -> dict[str, Any]:
    """One model."""
    return {"id": name, "object": "model", "created": 0, "owned_by": owner}


def refusal(error: SwarmError, full: int = 429) -> tuple[int, dict[str, Any]]:
    """The code and the document of an error. full: the code where too much is asked at a time."""
    code, name = statuses.http_code(error, full), None
    if isinstance(error, ResourceExhausted) and error.retry_after in (0.0, inf):
        code, name = 400, "context_length_exceeded"  # later it would not fit either
    elif error.status is Status.NOT_FOUND:
        name = "model_not_found"
    kind = _TYPES.get(code, "invalid_request_error" if code < 500 else "server_error")
    text = str(error)
    field_name, colon, _ = text.partition(":")
    is_field = code == 400 and bool(colon) and field_name.replace("_", "").isalnum()
    param = field_name if is_field and name is None else None
    return code, {
        "error": {
            "message": text,
            "type": kind,
            "param": param,
            "code": name or _CODES.get(code),
        }
    }


def _content(token: GeneratedToken) -> dict[str, Any]:
    return _likely(_piece(token, 0), token.logprob) | {
        "top_logprobs": [
            _likely(_piece(token, at), log) for at, (_, log) in enumerate(token.alternatives, 1)
        ]
    }


def _likely(piece: str, log: float | None) -> dict[str, Any]:
    known = None if _HALF in piece else list(piece.encode())
    return {"token": piece, "bytes": known, "logprob": log}


def _piece(token: GeneratedToken, at: int) -> str:
    return token.pieces[at] if at < len(token.pieces) else ""
