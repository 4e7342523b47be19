"""Calls of tools in the text of an answer, as models write them. Pure.

Two forms are known: that of Hermes and Qwen, `<tool_call>{"name": …, "arguments": {…}}</tool_call>`
anywhere in the text, and that of Llama 3, an answer that is nothing but
`{"name": …, "parameters": {…}}`, or several with `;` between. What names no tool of the request,
or is not exactly so, stays text. What is found depends on the whole text, not on its pieces.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from swarm.errors import InvalidArgument
from swarm.language.request import schema_of

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MOST_CALL = 1 << 16  # characters; what is longer is text
_BEGINNINGS = ('{"name":', '{"type":"function","name":')
_FIELDS = frozenset({"type", "name", "arguments", "parameters"})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """arguments: an object of JSON."""

    name: str
    arguments: str


class ToolStream:
    """`push` the text as it comes, then `end` it: both give the text that is no call, and the
    calls. Space beside a call is dropped. names: of the request's tools."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._held = ""
        self._is_text = False  # else it may be one bare object of JSON, or nothing but space
        self._dropping = False  # space behind a call

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        """What is certain by now."""
        self._held += text
        if not self._is_text:
            begun = self._held.lstrip()
            if not begun or (len(begun) <= MOST_CALL and _may_be_calls(begun)):
                return "", []
            self._is_text = True
        return self._scanned()

    def end(self, cut: bool = False) -> tuple[str, list[ToolCall]]:
        """What is left. cut: the answer ended for want of tokens: a call that has begun is neither
        a call nor text, and is left out."""
        if not self._is_text:
            calls = _bare(self._held, self._names)
            if calls:
                self._held = ""
                return "", calls
            self._is_text = True
        text, calls = self._scanned()
        left, self._held = self._held, ""
        begun = left.lstrip()
        if begun.startswith(OPEN) and (call := _call(begun[len(OPEN) :], self._names)):
            return text, [*calls, call]  # some models end without the closing tag
        return text if cut and begun.startswith(OPEN) else text + left, calls

    def _scanned(self) -> tuple[str, list[ToolCall]]:
        """Take the text that is certain, and the calls, from what is held."""
        said: list[str] = []
        calls: list[ToolCall] = []
        while True:
            if self._dropping:
                self._held = self._held.lstrip()
                self._dropping = not self._held
            at = self._held.find(OPEN)
            if at < 0:
                sure = len(self._held) - _overlap(self._held, OPEN)
                said.append(self._taken(len(self._held[:sure].rstrip())))
                return "".join(said), calls
            said.append(self._taken(len(self._held[:at].rstrip())))
            at = self._held.index(OPEN)
            body = at + len(OPEN)
            close = self._held.find(CLOSE, body, body + MOST_CALL + len(CLOSE))
            if close < 0 and len(self._held) < body + MOST_CALL + len(CLOSE):
                return "".join(said), calls
            call = None if close < 0 else _call(self._held[body:close], self._names)
            if call is None:
                said.append(self._taken(body))  # a tag that opens no call is text
                continue
            calls.append(call)
            self._taken(close + len(CLOSE))
            self._dropping = True

    def _taken(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        return text


def names_of(tools: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The names of a request's tools."""
    return frozenset(each["name"] for each in _functions(tools))


def call_schema(tools: Sequence[Mapping[str, Any]], only: str = "") -> str:
    """The JSON schema of an answer that is one call. only: the name of the tool that is called, ""
    for any of them. Raises `InvalidArgument`."""
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": function["name"]},
                "arguments": function.get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for function in _functions(tools)
        if only in ("", function["name"])
    ]
    if not calls:
        raise InvalidArgument("tool_choice: it names no tool of the request")
    return schema_of({"schema": calls[0] if len(calls) == 1 else {"anyOf": calls}})


def _functions(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    found = [tool.get("function") for tool in tools]
    return [f for f in found if isinstance(f, Mapping) and isinstance(f.get("name"), str)]


def _may_be_calls(text: str) -> bool:
    """Whether a text begins as an object that is a call does, as far as it has come."""
    begun = "".join(text[:200].split())
    return any(known.startswith(begun) or begun.startswith(known) for known in _BEGINNINGS)


def _bare(text: str, names: Collection[str]) -> list[ToolCall]:
    """The calls that a text is made of; none where it has anything else."""
    calls, at, text = [], 0, text.strip()
    while at < len(text):
        try:
            found, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        call = _of(found, names)
        if call is None:
            return []
        calls.append(call)
        while at < len(text) and (text[at] == ";" or text[at].isspace()):
            at += 1
    return calls


def _call(text: str, names: Collection[str]) -> ToolCall | None:
    found = _bare(text, names)
    return found[0] if len(found) == 1 else None


def _of(found: Any, names: Collection[str]) -> ToolCall | None:
    if not isinstance(found, dict) or not found.keys() <= _FIELDS:
        return None
    name = found.get("name")
    given = [found[key] for key in ("arguments", "parameters") if key in found]
    if not isinstance(name, str) or name not in names:
        return None
    if len(given) != 1 or not isinstance(given[0], dict):
        return None
    try:
        arguments = json.dumps(given[0], ensure_ascii=False)
        arguments.encode()
    except UnicodeEncodeError:  # half a character
        arguments = json.dumps(given[0])
    except RecursionError:
        return None
    return ToolCall(name, arguments)


def _overlap(text: str, tag: str) -> int:
    """Characters at the end of `text` with which `tag` may begin."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_number)
