"""Bodies of OpenAI's protocol: any JSON is a request, or is refused by name."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from nodes.openai.documents import refusal
from nodes.openai.wanted import MOST_CHOICES, WantedAnswer, wanted
from swarm.errors import InvalidArgument, ResourceExhausted, Unavailable
from swarm.language.cascade import Cascade

CHAT: dict[str, Any] = {
    "model": "llm@2",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    "tools": [{"type": "function", "function": {"name": "move"}}],
    "tool_choice": "auto",
    "n": 2,
    "seed": 5,
    "stop": ["a", "b"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "max_completion_tokens": 7,
    "logit_bias": {},
    "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    "cascade": None,
}
TEXT: dict[str, Any] = {
    "model": "llm",
    "prompt": ["a", [1, 2]],
    "n": 3,
    "logprobs": 1,
    "echo": False,
}
ODD = (None, True, -1, 0, 7, 1e300, 0.5, "", "x", "\udcff", [], [[]], [1], [None], {}, {"a": []})
ODD_MANY = (*ODD, 1 << 70, "y" * 999, [[1, "a"]], [{"role": 1}], [{"role": "user", "content": 5}])


def mutated(value: Any, chance: random.Random) -> Any:
    """The same with one part replaced, left out or doubled."""
    if not isinstance(value, dict | list) or not value or chance.random() < 0.2:
        return chance.choice(ODD_MANY)
    if isinstance(value, list):
        at = chance.randrange(len(value))
        return [*value[:at], mutated(value[at], chance), *value[at + chance.randrange(2) :]]
    key = chance.choice(sorted(value))
    changed = dict(value)
    if chance.random() < 0.2:
        del changed[key]
    else:
        changed[key] = mutated(value[key], chance)
    return changed


@pytest.mark.parametrize(("body", "is_chat"), [(CHAT, True), (TEXT, False)])
def test_ten_thousand_changed_bodies_are_read_or_refused_by_name(
    body: dict[str, Any], is_chat: bool
) -> None:
    chance, read = random.Random(1), 0
    for _ in range(10_000):
        doc = mutated(body, chance)
        for _ in range(chance.randrange(3)):
            doc = mutated(doc, chance)
        if not isinstance(doc, dict):
            continue
        try:
            found = wanted(doc, is_chat)
            for request in found.requests:
                request.encode()
        except InvalidArgument:
            continue
        read += 1
        assert 1 <= len(found.requests) <= MOST_CHOICES
    assert read > 500


def test_a_chat_is_read_field_by_field() -> None:
    found = wanted(CHAT, True)
    assert isinstance(found, WantedAnswer)
    assert (found.model, found.version, found.stream, found.with_usage) == ("llm", "2", True, True)
    first, second = found.requests
    assert [first.sampling.seed, second.sampling.seed] == [5, 6]
    assert first.messages == ({"role": "user", "content": "Hi"},)
    assert (first.max_tokens, first.fit, first.stops) == (7, False, ("a", "b"))
    assert (first.sampling.alternatives, len(first.tools)) == (3, 1)
    assert wanted(CHAT | {"max_completion_tokens": None}, True).requests[0].fit
    silent = wanted(CHAT | {"tool_choice": "none"}, True)
    assert (silent.requests[0].tools, silent.tools) == ((), frozenset())
    assert wanted(CHAT, True).tools == {"move"}


def test_forms_of_answers_become_schemas() -> None:
    def schema(**fields: Any) -> str:
        return wanted(CHAT | {"response_format": None} | fields, True).requests[0].schema

    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "array"}}}
    assert json.loads(schema(response_format=form)) == {"type": "array"}
    assert json.loads(schema(response_format={"type": "json_object"})) == {"type": "object"}
    assert "move" in schema(tool_choice="required")
    assert schema(response_format={"type": "text"}) == ""
    large = {"type": "json_schema", "json_schema": {"schema": {"enum": ["x" * 20_000]}}}
    cases = [
        {"response_format": large},
        {"response_format": {"type": "json_schema"}},
        {"response_format": form, "tool_choice": "required"},
        {"tool_choice": {"type": "function", "function": {"name": "fly"}}},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}]},
    ]
    for fields in cases:
        with pytest.raises(
            InvalidArgument, match=r"^(schema|response_format|tool_choice|messages)"
        ):
            schema(**fields)


def test_a_cascade_is_a_name_or_a_rule_and_gives_one_answer() -> None:
    one = CHAT | {"n": 1}
    assert wanted(one, True).cascade is None
    assert wanted(one | {"cascade": "large@2"}, True).cascade == Cascade("large@2")
    rule = {"large": "large", "below": -2, "tokens": 4, "by": "least", "patience": 1}
    assert wanted(one | {"cascade": rule}, True).cascade == Cascade("large", -2.0, 4, "least", 1.0)
    for fields in ({"n": 2, "cascade": "large"}, *({"cascade": odd} for odd in (5, "", {}))):
        with pytest.raises(InvalidArgument, match="cascade"):
            wanted(one | fields, True)
    with pytest.raises(InvalidArgument, match="by"):
        wanted(one | {"cascade": rule | {"by": "most"}}, True)


def test_arguments_of_calls_go_to_the_template_as_objects() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "move", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    [request, _] = wanted(CHAT | {"messages": [message]}, True).requests
    assert request.messages[0]["tool_calls"][0]["function"]["arguments"] == {"a": 1}


def test_texts_and_ids_are_asked_for_in_order() -> None:
    found = wanted(TEXT, False)
    assert found.prompts == 2
    assert [request.text for request in found.requests] == ["a"] * 3 + [None] * 3
    assert found.requests[-1].prompt == (1, 2)


def test_an_error_has_the_code_that_a_client_acts_on() -> None:
    assert refusal(ResourceExhausted("too long"))[0] == 400
    code, document = refusal(ResourceExhausted("no slot", 1.0))
    assert (code, document["error"]["type"]) == (429, "rate_limit_error")
    assert refusal(ResourceExhausted("no slot", 1.0), full=503)[0] == 503
    assert refusal(Unavailable("nobody"))[0] == 503
    assert refusal(InvalidArgument("n: too many"))[1]["error"]["param"] == "n"
    assert json.dumps(document)


def test_a_whole_number_may_be_written_with_a_point() -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    assert wanted(chat | {"max_tokens": 12.0, "n": 2.0}, True).requests[1].max_tokens == 12
    for wrong in (12.5, float("nan"), float("inf"), "12", True):
        with pytest.raises(InvalidArgument, match="max_tokens"):
            wanted(chat | {"max_tokens": wrong}, True)


def test_a_chat_of_openais_leaves_to_the_owner_what_it_does_not_name() -> None:
    said = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
    [request] = wanted(said, is_chat=True).requests
    assert request.recommended == ("top_p", "top_k", "repetition_penalty")
    [request] = wanted({"model": "m", "prompt": "Hi"}, is_chat=False).requests
    assert request.recommended == ()
