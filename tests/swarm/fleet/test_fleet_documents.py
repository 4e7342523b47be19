"""Documents of strangers are read into the types that they should have, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statuses import a_stage, a_status, event

from swarm.errors import DecodeError
from swarm.fleet.documents import (
    LARGEST_EVENT,
    LARGEST_STATUS,
    LONGEST_TEXT,
    MOST,
    STAGE_FIELDS,
    STATUS_FIELDS,
    read_event,
    read_status,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


def read(doc: Any, node: str = "shard-1-a") -> dict[str, Any]:
    return read_status(json.dumps(doc).encode(), node)[0]


def faults_of(**fields: Any) -> list[str]:
    return read_status(json.dumps(a_status(**fields)).encode(), "shard-1-a")[1].named


def test_a_good_status_is_read_whole() -> None:
    doc = a_status()
    assert read(doc) == doc
    assert faults_of() == []


def test_a_field_that_cannot_be_is_dropped_and_named_and_the_others_stay() -> None:
    doc = read(a_status(rss_bytes="<script>", rate=float("nan"), cpu_seconds=-1, pid=10**40))
    assert "rss_bytes" not in doc
    assert "rate" not in doc
    assert doc["queue_depth"] == 2
    assert faults_of(rss_bytes="<script>") == ["rss_bytes is no number"]
    assert faults_of(rate=float("inf")) == ["rate is out of range"]
    assert faults_of(stages=[a_stage(waiting=True)]) == ["stages[].waiting is no number"]
    assert faults_of(stages=[a_stage(stage="1")]) == [
        "stages[].stage is no number",
        "stages[] lacks stage",
    ]


def test_names_are_tokens_and_texts_stay_as_they_came_but_short() -> None:
    assert faults_of(model="<script>alert(1)</script>") == ["model is no name"]
    assert read(a_status(detail="<b>\n\x1b[2J"))["detail"] == "<b>\n\x1b[2J"
    assert len(read(a_status(host="x" * 5000))["host"]) == LONGEST_TEXT


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b"[" * 30_000,
        b'{"v": 1' + b" " * LARGEST_STATUS + b"}",
        json.dumps(a_status(v=2)).encode(),
        json.dumps(a_status(state="fine")).encode(),
        json.dumps(a_status("shard-1-b")).encode(),
        json.dumps({"v": 1, "node": "shard-1-a"}).encode(),
    ],
)
def test_a_message_that_is_no_status_of_its_node_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        read_status(data, "shard-1-a")


@given(json_values, st.sampled_from([*a_status(), "gossip", "requests", "slo", "learning"]))
def test_whatever_a_field_holds_the_rest_is_read_within_bounds(value: Any, field: str) -> None:
    data = json.dumps(a_status() | {field: value}).encode()
    try:
        doc, _ = read_status(data, "shard-1-a")
    except DecodeError:
        assert field in ("v", "node", "state", "role")
        return

    def within(one: Any) -> bool:
        if isinstance(one, dict):
            return all(len(k) <= LONGEST_TEXT and within(v) for k, v in one.items())
        if isinstance(one, list):
            return all(map(within, one))
        if isinstance(one, int | float):
            return abs(one) <= MOST
        return one is None or len(one) <= LONGEST_TEXT

    assert within(doc)


@given(st.binary(max_size=200))
@settings(max_examples=50)
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    for reader in (read_status, read_event):
        with pytest.raises(DecodeError):
            reader(data, "x")


def test_each_field_that_the_reader_knows_is_one_of_the_schema() -> None:
    file = Path(__file__).parents[3] / "swarm" / "schemas" / "status.schema.json"
    schema = json.loads(file.read_text())
    assert set(STATUS_FIELDS) <= set(schema["properties"])
    assert set(schema["$defs"]["stage"]["properties"]) == set(STAGE_FIELDS)


def test_an_event_is_read_with_its_own_fields_and_refused_under_another_kind() -> None:
    subject, data = event("took-over", stage=2, detail="x" * 2000)
    read_ = read_event(data, subject.rpartition(".")[2])
    assert (read_["kind"], read_["stage"], len(read_["detail"])) == ("took-over", 2, LONGEST_TEXT)
    for wrong in ("died", ""):
        with pytest.raises(DecodeError):
            read_event(data, wrong)
    with pytest.raises(DecodeError):
        read_event(event("died", detail="x" * LARGEST_EVENT)[1], "died")
