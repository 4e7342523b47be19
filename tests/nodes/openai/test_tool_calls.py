"""Calls of tools in answers: the same however the text comes in pieces, and all else stays text."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nodes.openai.documents import AnswerDocument, GrowingAnswer
from nodes.openai.tool_calls import (
    MOST_CALL,
    ToolCall,
    ToolStream,
    call_schema,
    names_of,
)
from swarm.errors import InvalidArgument
from swarm.language.follow import GeneratedToken, Usage

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "move",
            "parameters": {
                "type": "object",
                "properties": {"metres": {"type": "integer"}},
                "required": ["metres"],
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]
NAMES = names_of(TOOLS)
CALL = '{"name": "move", "arguments": {"metres": 3, "how": "größer"}}'
HERMES = f"<tool_call>\n{CALL}\n</tool_call>"
LLAMA = '{"name": "stop", "parameters": {}}'
MOVE = ToolCall("move", '{"metres": 3, "how": "größer"}')
STOP = ToolCall("stop", "{}")


def read(*pieces: str) -> tuple[str, list[ToolCall]]:
    """The text and the calls of an answer that comes in pieces."""
    stream, said, calls = ToolStream(NAMES), "", []
    for piece in pieces:
        text, found = stream.push(piece)
        said, calls = said + text, calls + found
    text, found = stream.end()
    return said + text, calls + found


@given(cut=st.integers(0, len(f"I go. {HERMES}")), before=st.sampled_from(["", "I go. "]))
def test_a_call_that_is_cut_off_for_want_of_tokens_is_left_out(cut: int, before: str) -> None:
    answer = before + HERMES[:cut]
    stream = ToolStream(NAMES)
    text, calls = stream.push(answer)
    rest, more = stream.end(cut=True)
    # Some models end without the closing tag, or with a part of it.
    whole = CALL in answer and answer.rstrip().endswith(("}", "</tool_call>"))
    if whole:
        assert calls + more == [MOVE]
    if "<tool_call>" in answer:
        assert (text + rest).strip() == before.strip()


@pytest.mark.parametrize(
    ("answer", "text", "calls"),
    [
        (HERMES, "", [MOVE]),
        (f"I go.\n\n{HERMES}\n{HERMES}\n", "I go.", [MOVE, MOVE]),
        (f"<tool_call>{CALL}", "", [MOVE]),
        (f"{HERMES} Done.", "Done.", [MOVE]),
        (f"<tool_call>robot {HERMES}", "<tool_call>robot", [MOVE]),
        (f" {LLAMA}\n", "", [STOP]),
        (f"{LLAMA}; {LLAMA}", "", [STOP, STOP]),
        ('{"type": "function", "name": "stop", "parameters": {}}', "", [STOP]),
    ],
)
def test_calls_of_both_forms_are_found(answer: str, text: str, calls: list[ToolCall]) -> None:
    assert read(answer) == (text, calls)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        " \n",
        "Hello <b>there</b>",
        '{"age": 3}',
        f"{LLAMA} and more",
        LLAMA.replace("stop", "unknown"),
        HERMES.replace("move", "unknown"),
        '<tool_call>{"name": "stop"}</tool_call>',
        '<tool_call>{"name": "stop", "arguments": "{}"}</tool_call>',
        '<tool_call>{"name": "stop", "arguments": {}, "more": 1}</tool_call>',
        '<tool_call>{"name": "stop", "arguments": {"a": NaN}}</tool_call>',
        "<tool_call></tool_call>",
        f"<tool_call>{CALL}{CALL}</tool_call>",
        '{"name": "stop", "parameters": ' + "[" * 9000 + "]" * 9000 + "}",
        f"<tool_call>{' ' * MOST_CALL}{CALL}</tool_call>",
        f"{' ' * 10}{LLAMA[:-1]}{' ' * MOST_CALL}}}",
    ],
)
def test_all_else_stays_text_to_the_letter(answer: str) -> None:
    assert read(answer) == (answer, [])


PIECES = st.sampled_from(
    [HERMES, CALL, LLAMA, "<tool_call>", "</tool_call>", "<tool", '{"name"', ": ", *"{}; \n<aé"]
)
ANSWERS = st.lists(PIECES, max_size=8).map("".join)


def mutated(answer: str, changes: list[tuple[int, str]]) -> str:
    for at, new in changes:
        at %= len(answer) + 1
        answer = answer[:at] + new + answer[at + 1 :]
    return answer


@given(
    answer=ANSWERS,
    changes=st.lists(st.tuples(st.integers(0, 500), st.text(max_size=2)), max_size=3),
    cuts=st.lists(st.integers(0, 500), max_size=12),
)
@example(answer=HERMES, changes=[], cuts=list(range(len(HERMES))))
@example(answer=LLAMA, changes=[], cuts=list(range(len(LLAMA))))
def test_any_answer_in_any_pieces_gives_the_same_text_and_calls(
    answer: str, changes: list[tuple[int, str]], cuts: list[int]
) -> None:
    answer = mutated(answer, changes)
    ends = sorted({min(cut, len(answer)) for cut in cuts} | {0, len(answer)})
    pieces = [answer[a:b] for a, b in pairwise(ends)]
    text, calls = read(answer)
    assert read(*pieces) == read(*answer) == (text, calls)
    for call in calls:
        assert call.name in NAMES
        assert isinstance(json.loads(call.arguments), dict)
        call.arguments.encode()
    if not calls:
        assert text == answer
    assert len(re.sub(r"\s", "", text)) <= len(re.sub(r"\s", "", answer))


def test_text_is_not_held_back_longer_than_it_may_be_a_call() -> None:
    stream = ToolStream(NAMES)
    assert stream.push("Hello <tool") == ("Hello", [])
    assert stream.push("box> ") == (" <toolbox>", [])
    assert ToolStream(NAMES).push('{"age": 3') == ('{"age": 3', [])


def test_the_schema_of_a_call_takes_calls_and_nothing_else() -> None:
    any_tool, one = json.loads(call_schema(TOOLS)), json.loads(call_schema(TOOLS, "stop"))
    move = {"name": "move", "arguments": {"metres": 3}}
    jsonschema.validate(move, any_tool)
    jsonschema.validate({"name": "stop", "arguments": {}}, one)
    for schema, wrong in ((one, move), (any_tool, {"name": "move", "arguments": {}})):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    for tools, name in (([], ""), (TOOLS, "fly"), ([{"function": {"name": []}}], "")):
        with pytest.raises(InvalidArgument, match="tool_choice"):
            call_schema(tools, name)


@given(answer=ANSWERS, size=st.integers(1, 9))
@example(answer=f"I go. {HERMES}\n{HERMES}", size=3)
def test_a_stream_of_chunks_adds_up_to_the_whole_answer(answer: str, size: int) -> None:
    document = AnswerDocument("chatcmpl-1", "llm", "llm@1", 0, is_chat=True, logprobs=False)
    texts = [answer[at : at + size] for at in range(0, len(answer), size)]
    tokens = [GeneratedToken(seq, 0, text) for seq, text in enumerate(texts)]
    tokens.append(GeneratedToken(len(texts), 0, "", finish="stop", usage=Usage(1, len(texts))))
    streamed, whole = GrowingAnswer(0, ToolStream(NAMES)), GrowingAnswer(0, ToolStream(NAMES))
    content, calls, finish = "", {}, None
    for token in tokens:
        whole.take(token)
        [piece] = document.chunk(streamed.take(token))["choices"]
        content += piece["delta"].get("content", "")
        calls |= {each.pop("index"): each for each in piece["delta"].get("tool_calls", [])}
        finish = piece["finish_reason"]
    [choice] = document.whole([whole], {})["choices"]
    assert content == (choice["message"]["content"] or "")
    assert list(calls.values()) == choice["message"].get("tool_calls", [])
    assert finish == choice["finish_reason"] == ("tool_calls" if calls else "stop")
    assert len({call["id"] for call in calls.values()}) == len(calls)
