"""A schema whose tokens take long to be found ends its own answer, and no other one's."""

from __future__ import annotations

import json

import pytest
from support.talker import texts

from nodes.language.schemas import MOST_SLOW, SchemaReader
from shards.language.grammar import Grammars
from swarm.errors import InvalidArgument

WORDS = json.dumps({"type": "array", "items": {"enum": ["left", "right"]}})
NUMBER = json.dumps({"type": "integer"})


def test_a_schema_that_is_slow_to_follow_ends_its_answer_and_is_refused_then() -> None:
    read = SchemaReader(Grammars(texts().tokenizer, ()), "node", slow=0.0)  # any look takes longer
    answer = read(WORDS)
    for _ in range(MOST_SLOW - 1):
        assert len(answer.allowed([]))
    with pytest.raises(InvalidArgument, match="takes too long"):
        answer.allowed([])
    with pytest.raises(InvalidArgument, match="takes too long"):
        read(WORDS)
    assert len(read(NUMBER).allowed([]))


def test_a_usual_schema_is_never_too_slow() -> None:
    answer = SchemaReader(Grammars(texts().tokenizer, ()), "node")(WORDS)
    assert all(len(answer.allowed([])) for _ in range(1000))
