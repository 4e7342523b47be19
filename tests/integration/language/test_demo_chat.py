"""`swarm demo --chat`: a shard that dies in mid-sentence changes no token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import commands

from nodes.language.demo import ChatAnswer, summarise


def answer(tokens: list[int], *, gap_at: int = -1) -> ChatAnswer:
    made = ChatAnswer(seed=1)
    for at, token in enumerate(tokens):
        made.tokens.append(token)
        made.texts.append(str(token))
        made.times.append(1.0 + at * 0.01 + (0.3 if 0 <= gap_at <= at else 0.0))
    return made


def test_a_pause_is_the_longest_wait_behind_the_kill() -> None:
    right, got = answer([1, 2, 3, 4]), answer([1, 2, 3, 4], gap_at=2)
    doc, broken = summarise(right, got, killed_at=1.015, after=2, took=True)
    assert broken == []
    assert (doc["equal"], doc["equal_tokens"], doc["killed_after_token"]) == (True, 4, 2)
    assert doc["pause_ms"] == pytest.approx(310, abs=1)
    assert doc["longest_wait_undisturbed_ms"] == pytest.approx(10, abs=1)


@pytest.mark.parametrize("tokens", [[1, 2, 9, 4], [1, 2, 3], [1, 2, 3, 4, 5]])
def test_another_text_or_a_kill_that_hit_nothing_breaks_the_promise(tokens: list[int]) -> None:
    right = answer([1, 2, 3, 4])
    doc, broken = summarise(right, answer(tokens), killed_at=1.015, after=2, took=True)
    assert not doc["equal"]
    assert broken == [f"the text differs: {doc['equal_tokens']} of 4 tokens are equal"]
    _, broken = summarise(right, right, killed_at=1.015, after=2, took=False)
    assert len(broken) == 1
    _, broken = summarise(right, right, killed_at=0.0, after=9, took=True)
    assert len(broken) == 1


@pytest.mark.integration
@pytest.mark.processes
@pytest.mark.benchmark
def test_a_shard_that_dies_in_mid_sentence_changes_no_token(tmp_path: Path) -> None:
    with commands(tmp_path / "commands") as run:
        command = run.start("nodes.cli.main", "demo", "--chat", "--json")
        assert command.wait(90.0) == 0, command.stdout + command.stderr
        doc = json.loads(command.stdout)
        assert (doc["equal"], doc["taken_over"], doc["broken"]) == (True, True, [])
        assert 0 < doc["killed_after_token"] < doc["tokens"] == doc["equal_tokens"]
        assert doc["pause_ms"] > 0
        assert len(doc["text"].split()) > 20
        assert not command.remaining()
