"""In which codec a process sends by the server, by what it knows of the readers and the links."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import msgpack
import numpy as np
import pytest

from swarm.fleet.advertised import StagePeer
from swarm.fleet.placement import Beyond, beyond
from swarm.flow.pace import Pace
from swarm.model import ModelInfo, Spec, Stage
from swarm.transport.coding import AnswerCoder, Coder, accepts
from swarm.wire.messages import Features
from swarm.wire.tensors import PLAIN, decode_tensors, known_codecs

SPEC = Spec("x", "FP32", (1, 8, 64, 64))
KNOWN = frozenset(known_codecs())
SLOW, FAST = 2_500_000.0, 0.0  # bytes a second; 0.0: fast or unknown
TENSORS = {"x": np.random.default_rng(1).random((1, 8, 64, 64), np.float32)}


def info(*allowed: str) -> ModelInfo:
    stages = (Stage(1, (SPEC,), (SPEC,), 1.0),)
    return ModelInfo("m", "1", (SPEC,), (SPEC,), stages, codecs=frozenset(allowed))


def link(rate: float = FAST) -> SimpleNamespace:
    """One that carries `rate` bytes a second from here."""
    pace = Pace()
    if rate:
        pace.tripped(0.010)
        pace.sends(100_000, 0.0)
        pace.answered(0.010 + 100_000 / rate)
    return SimpleNamespace(pace=pace)


def coder(codec: str, *allowed: str, rate: float = FAST) -> Coder:
    return Coder(link(rate), codec, info(*allowed), "features for stage 2")


@pytest.mark.parametrize(("own", "theirs"), [(SLOW, FAST), (FAST, SLOW), (SLOW, SLOW)])
def test_either_slow_link_is_a_reason_for_the_allowed_codec(own: float, theirs: float) -> None:
    parts, coding = coder("auto", "i8", rate=own).code(TENSORS, KNOWN, theirs)
    assert coding.lossy == "i8"
    assert parts is not None
    assert sum(map(len, parts)) < TENSORS["x"].nbytes / 3


def test_fast_links_and_unknown_readers_get_plain_bytes() -> None:
    assert coder("auto", "i8").code(TENSORS, KNOWN, FAST) == (None, PLAIN)
    assert coder("auto", "i8", rate=SLOW).code(TENSORS, None, SLOW) == (None, PLAIN)
    assert coder("i8", "i8").code(TENSORS, None, FAST) == (None, PLAIN)


def test_a_codec_that_the_receiver_does_not_know_is_told_once_and_all_goes_plain(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sender = coder("i8", "i8", rate=SLOW)
    with caplog.at_level(logging.WARNING, "swarm.codecs"):
        for _ in range(5):
            assert sender.code(TENSORS, frozenset({"f16"}), SLOW) == (None, PLAIN)
    (record,) = caplog.records
    assert "features for stage 2 of m@1 go plain, not as i8" in record.getMessage()
    assert sender.code(TENSORS, KNOWN, SLOW)[1].lossy == "i8"  # it was upgraded


def test_a_codec_that_the_owner_does_not_allow_is_told_once_and_nothing_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sender = coder("i4", rate=SLOW)
    with caplog.at_level(logging.WARNING, "swarm.codecs"):
        for _ in range(5):
            assert sender.code(TENSORS, KNOWN, SLOW) == (None, PLAIN)
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
            parts, _ = sender.code({"x": broken}, KNOWN, SLOW)
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


def test_a_result_follows_the_codecs_and_the_link_of_its_requester() -> None:
    routes = SimpleNamespace(link=link(), codec="auto")
    answers = AnswerCoder(routes, info("i8"))
    features = Features("id", "m", "1", 1, "reply", 1000, {})
    assert answers.code(features, TENSORS) is None  # it says nothing: an older client
    features.accepts, features.answer_rate = ",".join(KNOWN), int(SLOW)
    coded = answers.code(features, TENSORS)
    assert coded is not None
    assert sum(map(len, coded)) < TENSORS["x"].nbytes / 3
    features.accepts = "f16,x9"
    assert answers.code(features, TENSORS) is None


def test_a_requester_says_what_it_reads_only_where_that_may_matter() -> None:
    near, far = link(), link(SLOW)
    assert accepts(SimpleNamespace(link=near, codec="auto"), info()) == ("", 0)
    assert accepts(SimpleNamespace(link=far, codec="none"), info("i8")) == ("", 0)
    codecs, rate = accepts(SimpleNamespace(link=far, codec="auto"), info())
    assert set(codecs.split(",")) == KNOWN
    assert SLOW / 2 < rate <= SLOW
    assert accepts(SimpleNamespace(link=near, codec="auto"), info("i8"))[1] == 0
