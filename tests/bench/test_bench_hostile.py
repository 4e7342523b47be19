"""No message crashes a parser, keeps it busy, fills the memory, or raises an error without a type.

The same messages each time: a count of them, from a seed. `swarm bench hostile` plays a million,
other ones with another `--seed`, and CI a minute of them at its end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.hostile.campaign import TARGETS, HostilePlan, play, shares
from bench.hostile.slices import message_at, replay, run_slice
from bench.hostile.target import TYPED, Case, Target
from shards.weights.protobuf import bytes_field, number_field, text_field

MESSAGES = 20_000  # of all parsers together
SEED = 1


def seed_of(name: str) -> bytes:
    with ExitStack() as stack:
        return TARGETS[name].open(stack).seeds[0]


def manifest(**fields: Any) -> bytes:
    """The manifest of two stages, with other fields in the first stage."""
    doc = json.loads(seed_of("manifest"))
    doc["shards"][0] |= fields
    return json.dumps(doc).encode()


def weight(kind: int, dims: list[int], values: bytes) -> bytes:
    """An ONNX file of one weight."""
    shape = b"".join(number_field(1, dim) for dim in dims)
    tensor = shape + number_field(2, kind) + text_field(8, "w") + values
    return bytes_field(7, bytes_field(5, tensor))


def credentials(**claims: Any) -> bytes:
    with ExitStack() as stack:
        case = TARGETS["credentials-file"].open(stack)
        assert case.wrap is not None
        return case.wrap(json.dumps(json.loads(case.seeds[0]) | claims).encode())


SPEC = {"name": "x", "datatype": {"FP32": 1}, "shape": [1]}
# Each was a finding once.
KEPT: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a policy's option that is named as its parameter": (
        "desired-state",
        lambda: b'{"serve":[{"version":"1","share":100}],"policy_options":{"name":1}}',
    ),
    "an expiry that no float can hold": ("credentials-file", lambda: credentials(exp=10**400)),
    "a duration that no float can hold": ("manifest", lambda: manifest(compute_ms=10**400)),
    "a datatype that is a map": ("manifest", lambda: manifest(inputs=[SPEC])),
    "a folder of keys nested too deeply": ("authority-file", lambda: b"[" * 100_000),
    "a half of more than 16 bits": (
        "onnx.file",
        lambda: weight(10, [1], number_field(5, 1 << 40)),
    ),
    "a weight of no values and endless dimensions": (
        "onnx.file",
        lambda: weight(1, [0, 2**62, 2**62], b""),
    ),
    "an ONNX file of the shortest parts": (
        "onnx.file",
        lambda: bytes_field(7, b"\x00\x00" * 50_000),
    ),
    "a nested value with bytes behind it": (
        "gossip",
        lambda: b"\x91" * 1010 + b"\x90" + b"\x00",
    ),
    "a short list of keys": ("key-lists", lambda: b"# nobody\n"),
    "an ack subject of many tokens": ("link.words", lambda: b"$JS.ACK" + b"." * 200_000),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_message_that_broke_a_parser_once_is_refused_as_any_other(name: str) -> None:
    target, made = KEPT[name]
    result = replay(TARGETS[target], made())
    assert not result.findings, result.findings


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_messages_are_taken_or_refused_by_a_typed_error(name: str) -> None:
    count = shares(MESSAGES, list(TARGETS))[name]
    result = run_slice(TARGETS[name], SEED, 0, count)
    assert not result.findings, result.findings
    assert result.messages == result.taken + result.refused == count


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=10,
)


@pytest.mark.parametrize("name", [n for n, target in TARGETS.items() if target.form != "bytes"])
def test_documents_with_any_value_in_any_place_are_refused_by_a_typed_error(name: str) -> None:
    target = TARGETS[name]
    with ExitStack() as stack:
        case = target.open(stack)
        read, write = (
            (json.loads, lambda doc: json.dumps(doc).encode())
            if target.form == "json"
            else (lambda data: msgpack.unpackb(data, strict_map_key=False), msgpack.packb)
        )

        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.sampled_from(case.seeds), values, st.data())
        def try_one(inner: bytes, value: Any, data: st.DataObject) -> None:
            message = write(with_value(read(inner), value, data))
            with suppress(*TYPED):  # any other error fails the test
                case.parse(message if case.wrap is None else case.wrap(message))

        try_one()


def with_value(doc: Any, value: Any, data: st.DataObject) -> Any:
    """The document with this value in one of its places."""
    if isinstance(doc, dict) and doc and data.draw(st.integers(0, 4)):
        key = data.draw(st.sampled_from(sorted(doc)))
        return doc | {key: with_value(doc[key], value, data)}
    if isinstance(doc, list) and doc and data.draw(st.integers(0, 4)):
        at = data.draw(st.integers(0, len(doc) - 1))
        return [*doc[:at], with_value(doc[at], value, data), *doc[at + 1 :]]
    return value


def test_a_seed_makes_the_same_messages_again() -> None:
    with ExitStack() as stack:
        target = TARGETS["request.json"]
        case = target.open(stack)
        messages = [message_at(target, case, 7, index) for index in range(50)]
        assert messages == [message_at(target, case, 7, index) for index in range(50)]
        assert messages != [message_at(target, case, 8, index) for index in range(50)]
    assert len(set(messages)) > 40


def judged(parse: Callable[[bytes], object]) -> list[str]:
    """The kinds of findings of a parser, at one message of 100 bytes."""
    case = Case((b"x" * 100,), parse)
    result = replay(Target("made-up", "bytes", lambda stack: case), b"y" * 100)
    return [finding.kind for finding in result.findings]


def faulty(fault: Callable[[], object]) -> Callable[[bytes], object]:
    return lambda data: fault() if data.startswith(b"y") else None


def test_each_kind_of_fault_is_found() -> None:
    assert judged(faulty(lambda: {}["x"])) == ["error"]
    assert judged(faulty(lambda: bytes(2 << 20))) == ["memory"]
    assert judged(faulty(lambda: None)) == []

    def turn() -> None:
        while True:
            pass

    assert judged(faulty(turn)) == ["slow"]


@pytest.mark.benchmark
def test_the_command_plays_messages_in_processes_and_counts_them() -> None:
    told: list[str] = []
    plan = HostilePlan(messages=400, seed=3, targets=("gossip", "manifest"), workers=2)
    results = play(plan, told.append)
    assert [result.target for result in results] == ["gossip", "manifest"]
    assert sum(result.messages for result in results) == 400
    assert all(result.messages == result.taken + result.refused for result in results)
    assert not any(result.findings for result in results)
    assert len(told) == 2
