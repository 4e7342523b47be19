"""A body of OpenAI's protocol as requests for tokens. Pure; `InvalidArgument` names the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nodes.openai.tool_calls import call_schema, names_of
from swarm.errors import InvalidArgument
from swarm.language.cascade import MOST_HELD, Cascade
from swarm.language.request import (
    MOST_BUDGET,
    MOST_PIECES,
    MOST_TOKENS,
    RECOMMENDED,
    GenerateRequest,
    integer,
    maps,
    number,
    schema_of,
    strings,
)

MOST_CHOICES = 16  # of one request
TEXT_TOKENS = 16  # of a text's answer, where the client names no number, as OpenAI's reference says
HOTTEST = 2.0  # temperature, as there
# Fields that would change the answer, and their values that would not.
_LEFT_OUT: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "logit_bias": (None, {}),
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "functions": (None, []),
    "audio": (None,),
    "prediction": (None,),
    "modalities": (None, ["text"]),
}
_ANY_OBJECT = '{"type": "object"}'


@dataclass(frozen=True, slots=True)
class WantedAnswer:
    """model, version: as the client names them, "" for the version that serves. requests: one for
    each choice, without session and seed where the client names none. prompts: choices with the
    same prompt follow each other, and so many prompts there are. logprobs: whether the client
    wants them. tools: names of those whose calls are looked for in the answers. cascade: None for
    an answer of this model alone."""

    model: str
    version: str
    is_chat: bool
    requests: tuple[GenerateRequest, ...]
    prompts: int
    stream: bool
    with_usage: bool
    logprobs: bool
    tools: frozenset[str] = frozenset()
    cascade: Cascade | None = None


def wanted(doc: Mapping[str, Any], is_chat: bool) -> WantedAnswer:
    """Raises `InvalidArgument`."""
    for field, usual in _LEFT_OUT.items():
        if doc.get(field) not in usual:
            raise InvalidArgument(f"{field}: this value is not offered; leave it out")
    name = doc.get("model")
    if not isinstance(name, str) or not name:
        raise InvalidArgument("model: the name of a model, or NAME@VERSION")
    model, _, version = name.partition("@")
    count = integer(doc, "n", 1, 1, MOST_CHOICES)
    alternatives = _alternatives(doc, is_chat)
    request = GenerateRequest(
        max_tokens=_most(doc, is_chat),
        fit=is_chat and _named_most(doc) is None,
        stops=strings(doc, "stop"),
        budget=MOST_BUDGET,
        version=version,
        has_seed=doc.get("seed") is not None,
        schema=_schema(doc.get("response_format"), is_chat),
    )
    sampling = replace(
        request.sampling,
        temperature=number(doc, "temperature", 1.0, 0.0, HOTTEST),
        top_p=number(doc, "top_p", 1.0, 0.0, 1.0),
        top_k=max(0, integer(doc, "top_k", 0, -1, 1 << 31)),  # vLLM's name; -1: all of them
        repetition_penalty=number(doc, "repetition_penalty", 1.0, 0.01, 100.0),
        seed=integer(doc, "seed", 0, -(1 << 63), (1 << 63) - 1),
        alternatives=alternatives,
    )
    left_out = tuple(name for name in RECOMMENDED if is_chat and doc.get(name) is None)
    request = replace(request, sampling=sampling, recommended=left_out)
    asked = [_chat(request, doc)] if is_chat else _texts(request, doc)
    if count * len(asked) > MOST_CHOICES:
        raise InvalidArgument(f"n: at most {MOST_CHOICES} answers to one request")
    options = doc.get("stream_options") or {}
    if not isinstance(options, dict):
        raise InvalidArgument("stream_options: an object")
    return WantedAnswer(
        model,
        version,
        is_chat,
        tuple(_choice(one, number) for one in asked for number in range(count)),
        len(asked),
        _flag(doc, "stream"),
        _flag(options, "include_usage"),
        alternatives is not None,
        names_of(asked[0].tools),
        _cascade(doc, count * len(asked)),
    )


def _cascade(doc: Mapping[str, Any], count: int) -> Cascade | None:
    """A name, or an object with the fields of the rule."""
    given = doc.get("cascade")
    if given is None:
        return None
    if count > 1:
        raise InvalidArgument("cascade: it gives one answer to a request")
    rule = {"large": given} if isinstance(given, str) else given
    if not isinstance(rule, dict) or not isinstance(rule.get("large"), str):
        raise InvalidArgument("cascade: a model's name, or an object with `large`")
    usual = Cascade(rule["large"])
    return Cascade(
        usual.large,
        number(rule, "below", usual.below, -1e9, 0.0),
        integer(rule, "tokens", usual.tokens, 1, MOST_HELD),
        str(rule.get("by", usual.by)),
        number(rule, "patience", usual.patience, 0.001, MOST_BUDGET),
    )


def _choice(request: GenerateRequest, number: int) -> GenerateRequest:
    """The request of one of several answers: each draws by a seed of its own."""
    seed = request.sampling.seed + number
    return replace(request, sampling=replace(request.sampling, seed=seed))


def _flag(doc: Mapping[str, Any], name: str) -> bool:
    value = doc.get(name)
    if value not in (None, True, False):
        raise InvalidArgument(f"{name}: true or false")
    return bool(value)


def _named_most(doc: Mapping[str, Any]) -> Any:
    both = (doc.get("max_completion_tokens"), doc.get("max_tokens"))
    return next((value for value in both if value is not None), None)


def _most(doc: Mapping[str, Any], is_chat: bool) -> int:
    usual = MOST_TOKENS if is_chat else TEXT_TOKENS
    return integer({"max_tokens": _named_most(doc)}, "max_tokens", usual, 1, MOST_TOKENS)


def _alternatives(doc: Mapping[str, Any], is_chat: bool) -> int | None:
    if not is_chat:
        if doc.get("logprobs") is None:
            return None
        return integer(doc, "logprobs", 0, 0, MOST_PIECES)
    many = integer(doc, "top_logprobs", 0, 0, MOST_PIECES)
    if not _flag(doc, "logprobs"):
        if many:
            raise InvalidArgument("top_logprobs: it goes with logprobs")
        return None
    return many


def _chat(request: GenerateRequest, doc: Mapping[str, Any]) -> GenerateRequest:
    messages = [_message(dict(message)) for message in maps(doc, "messages")]
    if not messages:
        raise InvalidArgument("messages: a chat has one at least")
    tools, choice = maps(doc, "tools"), doc.get("tool_choice")
    schema = request.schema
    if choice not in (None, "auto", "none"):
        if schema:
            raise InvalidArgument("tool_choice: a call has its tool's form, and no response_format")
        schema = call_schema(tools, _named_tool(choice))
    return replace(
        request,
        messages=tuple(messages),
        tools=() if choice == "none" else tools,
        schema=schema,
    )


def _named_tool(choice: Any) -> str:
    """Of a `tool_choice` that wants a call: the tool's name, "" for any."""
    if choice == "required":
        return ""
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise InvalidArgument("tool_choice: auto, none, required, or a function with its name")
    return name


def _schema(given: Any, is_chat: bool) -> str:
    """The JSON schema of a `response_format`, as text; "" for any text."""
    kind = given.get("type") if isinstance(given, dict) else given
    if kind in (None, "text"):
        return ""
    if not is_chat:
        raise InvalidArgument("response_format: it goes with a chat")
    if kind == "json_object":
        return _ANY_OBJECT
    named = given.get("json_schema") if isinstance(given, dict) else None
    if kind != "json_schema" or not isinstance(named, dict):
        raise InvalidArgument("response_format: text, json_object, or json_schema with its schema")
    if not isinstance(named.get("schema"), dict):
        raise InvalidArgument("response_format: json_schema has a schema, an object")
    return schema_of(named)


def _with_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have objects as their arguments: templates take these, and OpenAI's
    clients write text."""
    calls = []
    for call in maps(message, "tool_calls"):
        function = call.get("function")
        if not isinstance(function, dict):
            raise InvalidArgument("messages: each call has a function")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                function = {**function, "arguments": json.loads(arguments or "{}")}
            except (ValueError, RecursionError):
                raise InvalidArgument("messages: arguments of a call are JSON") from None
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message with one text as its content, which is what templates take."""
    if not isinstance(message.get("role"), str):
        raise InvalidArgument("messages: each one has a role")
    if message.get("tool_calls"):
        message = _with_arguments(message)
    content = message.get("content")
    if isinstance(content, list):
        parts = maps(message, "content")
        texts = [part.get("text") for part in parts if part.get("type") == "text"]
        if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
            raise InvalidArgument("messages: parts of a content are texts; nothing else is read")
        message["content"] = "".join(str(text) for text in texts)
    elif not isinstance(content, str | None):
        raise InvalidArgument("messages: a content is a text, or a list of parts")
    return message


def _texts(request: GenerateRequest, doc: Mapping[str, Any]) -> list[GenerateRequest]:
    """One request for each prompt: a text, token ids, or a list of either."""
    given = doc.get("prompt")
    prompts = given if isinstance(given, list) else [given]
    if prompts and all(type(one) is int for one in prompts):
        prompts = [prompts]
    if not prompts or len(prompts) > MOST_CHOICES:
        raise InvalidArgument(f"prompt: a text, token ids, or 1 to {MOST_CHOICES} of them")
    return [_text(request, one) for one in prompts]


def _text(request: GenerateRequest, prompt: Any) -> GenerateRequest:
    if isinstance(prompt, str) and prompt:
        return replace(request, text=prompt)
    if isinstance(prompt, list) and prompt:
        return replace(request, prompt=GenerateRequest.read({"prompt": prompt}).prompt)
    raise InvalidArgument("prompt: a text, or a list of token ids, and not an empty one")
