"""In which codec a process sends by the server, by what it knows of the readers and the links."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest

from swarm.fleet.advertised import StagePeer
from swarm.fleet.placement import Beyond, beyond
from swarm.link.send_rate import SendRate
from swarm.model import ModelInfo, Spec, Stage
from swarm.transport.coding import AnswerCoder, Coder, accepts
from swarm.wire.tensors import Part, codec_of, decode_tensors, known_codecs

SPEC = Spec("x", "FP32", (1, 8, 64, 64))
RESULT = Spec("boxes", "FP32", (1, 4, 4096))
KNOWN = frozenset(known_codecs())
SLOW, FAST = 2_500_000.0, 0.0  # bytes a second; 0.0: fast or unknown
TENSORS = {"x": np.random.default_rng(1).random((1, 8, 64, 64), np.float32)}
OUTPUTS = {"boxes": np.random.default_rng(2).random((1, 4, 4096), np.float32)}


def info(*allowed: str, results: tuple[str, ...] = ()) -> ModelInfo:
    stages = (Stage(1, (SPEC,), (RESULT,), 1.0),)
    codecs = frozenset(allowed), frozenset(results)
    return ModelInfo("m", "1", (SPEC,), (RESULT,), stages, None, False, *codecs)


def codecs_in(parts: list[Part] | None) -> dict[str, str]:
    """The codec of each tensor, without zstd."""
    assert parts is not None
    doc = msgpack.unpackb(b"".join(parts))
    return {name: value["codec"].removesuffix("-zstd") for name, value in doc.items()}


def link(rate: float = FAST) -> SimpleNamespace:
    """One that carries `rate` bytes a second from here."""
    send_rate = SendRate()
    if rate:
        send_rate.tripped(0.010)
        send_rate.sends(100_000, 0.0)
        send_rate.answered(0.010 + 100_000 / rate)
    return SimpleNamespace(send_rate=send_rate)


def coder(codec: str, *allowed: str, rate: float = FAST, results: tuple[str, ...] = ()) -> Coder:
    return Coder(link(rate), codec, info(*allowed, results=results), "features for stage 2")


@pytest.mark.parametrize(("own", "theirs"), [(SLOW, FAST), (FAST, SLOW), (SLOW, SLOW)])
def test_either_slow_link_is_a_reason_for_the_allowed_codec(own: float, theirs: float) -> None:
    parts = coder("auto", "i8", rate=own).code(TENSORS, KNOWN, theirs)
    assert codecs_in(parts) == {"x": "i8"}
    assert parts is not None
    assert sum(map(len, parts)) < TENSORS["x"].nbytes / 3


def test_fast_links_and_unknown_readers_get_plain_bytes() -> None:
    assert coder("auto", "i8").code(TENSORS, KNOWN, FAST) is None
    assert coder("auto", "i8", rate=SLOW).code(TENSORS, None, SLOW) is None
    assert coder("i8", "i8").code(TENSORS, None, FAST) is None


def test_a_codec_that_the_receiver_does_not_know_is_told_once_and_all_goes_plain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sender = coder("i8", "i8", rate=SLOW)
    with caplog.at_level(logging.WARNING, "swarm.codecs"):
        for _ in range(5):
            assert sender.code(TENSORS, frozenset({"f16"}), SLOW) is None
    (record,) = caplog.records
    assert "features for stage 2 of m@1 go plain, not as i8" in record.getMessage()
    assert codecs_in(sender.code(TENSORS, KNOWN, SLOW)) == {"x": "i8"}  # it was upgraded


def test_a_codec_that_the_owner_does_not_allow_is_told_once_and_nothing_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sender = coder("i4", rate=SLOW)
    with caplog.at_level(logging.WARNING, "swarm.codecs"):
        for _ in range(5):
            assert sender.code(TENSORS, KNOWN, SLOW) is None
    (record,) = caplog.records
    assert "--allow-codec i4" in record.getMessage()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_the_codec_cannot_say_go_plain_and_are_told_of_once(
    value: float, caplog: pytest.LogCaptureFixture
) -> None:
    sender = coder("i8", "i8", rate=SLOW)
    broken = TENSORS["x"].copy()
    broken[0, 0, 0, 0] = value
    with caplog.at_level(logging.WARNING, "swarm.codecs"):
        for _ in range(5):
            parts = sender.code({"x": broken}, KNOWN, SLOW)
            assert parts is not None
            back = decode_tensors(msgpack.unpackb(b"".join(parts)))["x"]
            assert np.array_equal(back, broken, equal_nan=True)
            sender.code({"x": np.zeros((0, 3), np.float32)}, KNOWN, SLOW)
    (record,) = caplog.records
    assert "go plain, not as i8: there are values of 'x'" in record.getMessage()


def test_all_nodes_that_may_get_a_message_have_to_read_its_codec() -> None:
    new = StagePeer("new", 0, "", False, link_rate=SLOW, codecs=KNOWN)
    old = StagePeer("old", 2, "", False)
    assert beyond([new]) == Beyond(SLOW, KNOWN)
    assert beyond([new, old]) == Beyond(SLOW, frozenset())
    assert beyond([]) == Beyond(0.0, None)


@pytest.mark.parametrize(
    ("codec", "results", "came"),
    [
        ("auto", (), {"x": "i4", "boxes": "zstd"}),
        ("auto", ("i8",), {"x": "i4", "boxes": "i8"}),
        ("i4", (), {"x": "i4", "boxes": "zstd"}),
        ("i4", ("i8",), {"x": "i4", "boxes": "i8"}),
    ],
)
def test_a_result_that_is_ready_early_travels_among_features_in_the_codec_of_results(
    codec: str, results: tuple[str, ...], came: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    sender = coder(codec, "i4", rate=SLOW, results=results)
    compressible = {"boxes": np.round(OUTPUTS["boxes"], 1)}
    with caplog.at_level(logging.WARNING, "swarm.codecs"):
        parts = sender.code(compressible | TENSORS, KNOWN, SLOW)
    assert codecs_in(parts) == came
    assert caplog.records == []  # all of it is as the owner wants it
    assert parts is not None
    doc = msgpack.unpackb(b"".join(parts))
    back = decode_tensors(doc)
    assert back.keys() == {"x", "boxes"}
    assert np.array_equal(back["boxes"], compressible["boxes"]) == (not results)
    assert codec_of(doc).startswith("i4")  # a hop tells the codec of its features


def test_features_stay_exact_beside_results_that_do_not(caplog: pytest.LogCaptureFixture) -> None:
    sender = coder("i8", rate=SLOW, results=("i8",))
    with caplog.at_level(logging.WARNING, "swarm.codecs"):
        parts = sender.code(OUTPUTS | TENSORS, KNOWN, SLOW)
    assert codecs_in(parts) == {"x": "raw", "boxes": "i8"}
    (record,) = caplog.records
    assert "features for stage 2 of m@1 go plain" in record.getMessage()


def answered(codec: str, accepted: str, *allowed: str, results: tuple[str, ...] = ()) -> Any:
    """The parts of a result for a requester behind a slow link, None for plain bytes."""
    routes = SimpleNamespace(link=link(), codec=codec)
    coder = AnswerCoder(routes, info(*allowed, results=results))
    return coder.code(OUTPUTS, accepted, int(SLOW))


def test_a_result_follows_the_codecs_and_the_link_of_its_requester() -> None:
    assert answered("auto", "", results=("i8",)) is None  # it says nothing: an older client
    coded = answered("auto", ",".join(KNOWN), results=("i8",))
    assert sum(map(len, coded)) < OUTPUTS["boxes"].nbytes / 3
    assert answered("auto", "f16,x9", results=("i8",)) is None


@pytest.mark.parametrize("codec", ["auto", "i8", "i4"])
def test_codecs_that_are_allowed_for_features_alone_leave_results_exact(
    codec: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "swarm.codecs"):
        parts = answered(codec, ",".join(KNOWN), "i8", "i4")
    back = decode_tensors(msgpack.unpackb(b"".join(parts)))["boxes"] if parts else OUTPUTS["boxes"]
    assert np.array_equal(back, OUTPUTS["boxes"])
    assert caplog.records == []


def test_a_requester_that_does_not_know_the_codec_of_results_is_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "swarm.codecs"):
        assert answered("i4", "f16", "i4", results=("i8",)) is None
    (record,) = caplog.records
    assert "results of m@1 go plain, not as i8: the receiver" in record.getMessage()


def test_a_requester_says_what_it_reads_only_where_that_may_matter() -> None:
    near, far = link(), link(SLOW)
    assert accepts(SimpleNamespace(link=near, codec="auto"), info()) == ("", 0)
    assert accepts(SimpleNamespace(link=far, codec="none"), info("i8")) == ("", 0)
    codecs, rate = accepts(SimpleNamespace(link=far, codec="auto"), info())
    assert set(codecs.split(",")) == KNOWN
    assert SLOW / 2 < rate <= SLOW
    for allowed in (info("i8"), info(results=("i8",))):
        codecs, rate = accepts(SimpleNamespace(link=near, codec="auto"), allowed)
        assert (set(codecs.split(",")), rate) == (KNOWN, 0)
