"""Schemas of answers: every text that is drawn under one is valid; what would take long is refused,
and the node that tries it lives."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.talker import texts

from shards.errors import ModelError
from shards.language.grammar import Grammars, check_schema
from shards.language.schema_trial import tried
from shards.language.tokenizer import Tokenizer
from shards.language.toy import TOKENIZER, data_file

SOON = 15.0  # seconds; a trial has one second of processor time on a machine that others use too


@pytest.fixture(scope="module")
def bytewise() -> Grammars:
    """Over a tokenizer without a token that ends."""
    return Grammars(texts().tokenizer, ())


def drawn(grammars: Grammars, schema: Any, seed: int, most: int = 2000) -> list[int]:
    """Tokens drawn from those that are allowed, without a preference."""
    grammar, chance = grammars.of(json.dumps(schema)), np.random.default_rng(seed)
    made: list[int] = []
    while not grammar.is_whole(made):
        made.append(int(chance.choice(grammar.allowed(made))))
        assert len(made) < most
    return made


def leaves() -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.integers(0, 50).map(lambda most: {"type": "integer", "minimum": 0, "maximum": most}),
        st.integers(1, 8).map(lambda most: {"type": "string", "maxLength": most}),
        st.just({"type": "string", "pattern": "^[a-f]{2,5}$"}),
        st.lists(st.text('xyzü"\\', max_size=4), min_size=1, max_size=4, unique=True).map(
            lambda values: {"enum": values}
        ),
    )


def wider(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    objects = st.dictionaries(st.sampled_from("abcde"), inner, max_size=4).map(
        lambda properties: {
            "type": "object",
            "properties": properties,
            "required": sorted(properties)[:2],
            "additionalProperties": False,
        }
    )
    arrays = st.tuples(inner, st.integers(0, 2)).map(
        lambda pair: {"type": "array", "items": pair[0], "minItems": pair[1], "maxItems": 3}
    )
    unions = st.lists(inner, min_size=1, max_size=3).map(lambda each: {"anyOf": each})
    return st.one_of(objects, arrays, unions)


SCHEMAS = wider(st.recursive(leaves(), wider, max_leaves=6))


@given(schema=SCHEMAS, seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_whatever_is_drawn_under_a_schema_is_valid_json(
    bytewise: Grammars, schema: Any, seed: int
) -> None:
    assert tried(json.dumps(schema)) == "fine"
    text = texts().tokenizer.decode(drawn(bytewise, schema, seed))
    jsonschema.validate(json.loads(text), schema)


OBJECT = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 60), max_size=5))
@settings(max_examples=30, deadline=None)
def test_what_may_follow_depends_on_the_tokens_alone(
    bytewise: Grammars, seed: int, cuts: list[int]
) -> None:
    schema = OBJECT | {"additionalProperties": False}
    schema["properties"] = {"name": {"enum": ["Ada", "Alan"]}, "age": {"enum": [36, 41]}}
    made = drawn(bytewise, schema, seed)
    used = bytewise.of(json.dumps(schema))
    for cut in cuts:
        fresh = bytewise.of(json.dumps(schema))
        before = made[: min(cut, len(made) - 1)]
        assert used.allowed(before).tolist() == fresh.allowed(before).tolist()
        assert not used.is_whole(before)
        assert used.is_whole(made)


def test_a_models_own_end_ends_an_answer_that_could_go_on() -> None:
    tokenizer = Tokenizer(data_file(TOKENIZER))
    end = tokenizer.id_of("<|end|>")
    assert end is not None
    grammars = Grammars(tokenizer, (end,))
    grammar = grammars.of('{"type": "integer"}')
    seven = tokenizer.encode("7", special=False)
    assert end not in grammar.allowed([])
    assert end in grammar.allowed(seven)
    assert grammar.is_whole([*seven, end])
    with pytest.raises(ModelError):
        grammar.allowed(tokenizer.encode("seven", special=False))


def deep(levels: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def patterns(count: int) -> Any:
    return {"allOf": [{"type": "string", "pattern": f".*a.{{{20 + n}}}"} for n in range(count)]}


HOSTILE: dict[str, Any] = {
    "deep": deep(100),
    "deeper": "[" * 5000,
    "product": {"allOf": [{"anyOf": [deep(1 + n) for n in range(8)]} for _ in range(8)]},
    "patterns": patterns(20),
    "some patterns": patterns(12),
    "repetition": {"type": "string", "pattern": "^(x{1000}){1000}$"},
    "optional": {"type": "string", "pattern": "^(a?){500}a{500}$"},
    "multiple": {"type": "integer", "multipleOf": 999983},
    "multiples": {"allOf": [{"type": "integer", "multipleOf": p} for p in (997, 991)]},
    "endless": {"$ref": "#"},
    "elsewhere": {"$ref": "http://127.0.0.1:1/schema"},
    "file": {"$ref": "file:///etc/hostname"},
    "unknown": {"type": "object", "not": {}},
    "type": {"type": "robot"},
    "no object": [1, 2],
    "nothing": "",
    "half a character": "\ud800",
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_schema_is_refused_soon_and_by_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = HOSTILE[name]
    text = given if isinstance(given, str) else json.dumps(given)
    began = time.monotonic()
    with pytest.raises(ModelError, match=r"."):
        check_schema(text)
    assert time.monotonic() - began < SOON
    monkeypatch.setattr("subprocess.run", None)  # it is not tried again
    with pytest.raises(ModelError):
        check_schema(text)


ANY = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 2000), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
    max_leaves=4,
)
KEYWORDS = st.sampled_from(
    [
        "type",
        "items",
        "properties",
        "required",
        "enum",
        "const",
        "pattern",
        "format",
        "minLength",
        "maxItems",
        "multipleOf",
        "allOf",
        "anyOf",
        "$ref",
        "$defs",
        "x-guidance",
    ]
)


@given(schema=st.dictionaries(KEYWORDS, st.one_of(ANY, SCHEMAS), min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_any_object_is_a_schema_that_has_a_first_token_or_is_refused(
    bytewise: Grammars, schema: dict[str, Any]
) -> None:
    text = json.dumps(schema)
    try:
        check_schema(text)
    except ModelError:
        return
    assert len(bytewise.of(text).allowed([]))


def test_without_the_library_a_schema_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ModelError, match="llguidance"):
        check_schema("{}")


def test_a_clients_options_for_the_library_are_not_taken(bytewise: Grammars) -> None:
    schema = {"enum": [["a", "b"]], "x-guidance": {"whitespace_pattern": "x+", "lenient": True}}
    made = drawn(bytewise, schema, 0)
    assert texts().tokenizer.decode(made) == '["a", "b"]'
