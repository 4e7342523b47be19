"""The server's clock as seen from here, and what the mesh reads of a manifest."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages_strategies import damaged

from swarm.clock import RESAMPLE_AFTER, ServerClock, parse_rfc3339
from swarm.errors import DecodeError, InvalidArgument
from swarm.lanes.message import parse_ack_subject
from swarm.model import ModelInfo, Spec, check_tensors

SECOND = 1_000_000_000
times = st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1))


@settings(deadline=None)
@given(times, st.integers(0, 999_999_999), st.integers(0, 9), st.integers(-14 * 60, 14 * 60))
def test_any_rfc_3339_stamp_is_read_to_the_nanosecond(
    when: datetime, nanoseconds: int, digits: int, minutes: int
) -> None:
    whole = when.replace(microsecond=0, tzinfo=UTC)
    fraction = f"{nanoseconds:09d}"[:digits]
    expected = int(whole.timestamp()) * SECOND + int(fraction.ljust(9, "0"))
    tail = f".{fraction}" if fraction else ""
    utc = whole.strftime("%Y-%m-%dT%H:%M:%S")
    assert parse_rfc3339(f"{utc}{tail}Z") == expected
    zone = timezone(timedelta(minutes=minutes))
    local = whole.astimezone(zone)
    sign = "-" if minutes < 0 else "+"
    offset = f"{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
    stamp = f"{local.strftime('%Y-%m-%dT%H:%M:%S')}{tail}{offset}"
    assert parse_rfc3339(stamp) == expected


@pytest.mark.parametrize("stamp", ["", "Z", "yesterday", "2026-13-01T00:00:00Z", "2026-01-01T"])
def test_what_is_no_stamp_is_a_value_error(stamp: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_rfc3339(stamp)


def stamp(nanoseconds: int) -> str:
    whole = datetime.fromtimestamp(nanoseconds // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{nanoseconds % SECOND:09d}Z"


@settings(deadline=None)
@given(st.integers(-(10**17), 10**17), st.integers(0, 10**8), st.integers(0, 10**8))
def test_the_age_of_a_message_is_known_to_half_a_round_trip_however_clocks_differ(
    offset: int, there: int, back: int
) -> None:
    clock = ServerClock()
    sent = 5 * SECOND
    server_then = 10**18 + offset + sent + there  # the server's clock when it answered
    clock.sample(sent, sent + there + back, stamp(server_then))
    stored, now = server_then - SECOND // 2, sent + there + back
    truth = SECOND // 2 + back
    assert abs(clock.age(stored, now) - truth) <= (there + back) // 2 + 1


def test_the_shortest_round_trip_counts_until_it_is_old() -> None:
    clock = ServerClock()
    base = 10**18
    assert clock.age(base, 0) == 0  # nothing is known yet: nothing is claimed
    clock.sample(0, 100, stamp(base + 50))
    exact = clock.age(base, 1000)
    assert exact == 1000
    clock.sample(1000, 1000 + SECOND, stamp(base + 999_999_999))  # slow: ignored
    assert clock.age(base, 1000) == exact
    later = int((RESAMPLE_AFTER + 1) * SECOND)
    clock.sample(later, later + 1000, stamp(base + later + 500 + 7))  # the old one drifted
    assert clock.age(base, 1000) == exact + 7


def test_a_message_from_the_future_has_no_age() -> None:
    clock = ServerClock()
    clock.sample(0, 2, stamp(10**18))
    assert clock.age(10**18 + SECOND, 1) == 0


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("$JS.ACK.S.C.3.17.5.1700000000000000001.42", (3, 17, 1700000000000000001, 42)),
        ("$JS.ACK._.HASH.S.C.3.17.5.1700000000000000001.42", (3, 17, 1700000000000000001, 42)),
        ("$JS.ACK._.HASH.S.C.3.17.5.1700000000000000001.42.x", (3, 17, 1700000000000000001, 42)),
    ],
)
def test_both_forms_of_an_ack_subject_are_read(reply: str, expected: tuple[int, ...]) -> None:
    assert parse_ack_subject(reply) == expected


@pytest.mark.parametrize("reply", ["", "a", "_INBOX.x.1", "$JS.ACK.S.C.x.y.z.t.p", "$JS.ACK.S"])
def test_another_reply_is_no_ack_subject(reply: str) -> None:
    with pytest.raises(DecodeError):
        parse_ack_subject(reply)


def tensor(name: str = "x", shape: Any = (1, 8), datatype: str = "FP32") -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": list(shape)}


def manifest(**changes: Any) -> dict[str, Any]:
    shards = [
        {"stage": n, "receives": [tensor()], "sends": [tensor("y")], "compute_ms": 1.5}
        for n in (1, 2)
    ]
    return {
        "model": "m",
        "version": "1",
        "inputs": [tensor(shape=(-1, 8))],
        "outputs": [tensor("y")],
        "shards": shards,
    } | changes


def info(**changes: Any) -> ModelInfo:
    return ModelInfo.from_manifest(json.dumps(manifest(**changes)).encode())


def test_a_manifest_gives_the_stages_and_what_they_carry() -> None:
    edge = {"stage": 0, "receives": [tensor()], "sends": [tensor("y", (4, 8))]}
    got = info(shards=[edge, *manifest()["shards"]], batchable=True)
    assert (got.model, got.version, got.last, got.batchable) == ("m", "1", 2, True)
    assert got.edge is not None
    assert got.edge.message_bytes == 4 * 8 * 4
    assert [stage.stage for stage in got.stages] == [1, 2]
    assert got.inputs == (Spec("x", "FP32", (-1, 8)),)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "a.b"},
        {"model": None},
        {"version": 1},
        {"inputs": None},
        {"inputs": [7]},
        {"inputs": {"x": 1}},
        {"inputs": [tensor(datatype="FP8")]},
        {"inputs": [tensor(shape="ab")]},
        {"inputs": [tensor(shape=[1.5])]},
        {"inputs": [tensor(shape=[-2])]},
        {"shards": []},
        {"shards": None},
        {"shards": "abc"},
        {"shards": [7]},
        {"shards": manifest()["shards"][1:]},
        {"shards": manifest()["shards"] * 2},
        {"shards": [manifest()["shards"][0] | {"stage": float("inf")}]},
        {"shards": [manifest()["shards"][0] | {"compute_ms": "fast"}]},
    ],
    ids=lambda changes: repr(changes)[:40],
)
def test_a_manifest_with_a_fault_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        info(**changes)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"7", b"null", b'"x"', b"\xff", b"[" * 100_000, b"{}", b"\0" * 10],
    ids=lambda data: repr(data[:10]),
)
def test_what_is_no_manifest_is_an_invalid_argument(data: bytes) -> None:
    with pytest.raises(InvalidArgument):
        ModelInfo.from_manifest(data)


@settings(max_examples=300, deadline=None)
@given(damaged(json.dumps(manifest()).encode()))
def test_a_damaged_manifest_is_read_or_is_an_invalid_argument(data: bytes) -> None:
    with contextlib.suppress(InvalidArgument):
        ModelInfo.from_manifest(data)


F = np.float32


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({}, r"model 'm' takes 'x', not nothing"),
        ({"y": np.zeros((1, 8), F)}, r"takes 'x', not 'y'"),
        ({"x": np.zeros((1, 8), F), "y": np.zeros(1)}, r"takes 'x', not 'x', 'y'"),
        ({"x": np.zeros((1, 8))}, r"'x' must be FP32 \(float32\), not float64"),
        ({"x": np.zeros(8, F)}, r"must have shape \[any, 8\], not \[8\]"),
        ({"x": np.zeros((1, 9), F)}, r"must have shape \[any, 8\], not \[1, 9\]"),
        ({"x": np.zeros((0, 8), F)}, r"'x' is empty: shape \[0, 8\]"),
    ],
)
def test_wrong_inputs_are_told_what_was_expected_and_what_came(
    tensors: dict[str, np.ndarray], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says):
        info().check(tensors)


def test_right_inputs_pass() -> None:
    for rows in (1, 5):
        info().check({"x": np.zeros((rows, 8), F)})
    check_tensors((), {}, "a stage")
