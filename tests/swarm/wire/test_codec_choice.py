"""Which codec tensors travel in, decided without a network."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import InvalidArgument
from swarm.wire.codec_choice import (
    COSTS,
    MODES,
    CodecChoice,
    candidates,
    mode_of,
    obstacle,
    path_rate,
    results_rule,
)
from swarm.wire.codecs import CODECS
from swarm.wire.tensors import PLAIN, Coding

MBIT = 125_000.0  # bytes a second
FEATURES = 154_000  # bytes of a cut, as of a small detector's
EVERYTHING = (*CODECS, "zstd")
codec_sets = st.sets(st.sampled_from(CODECS))
known_sets = st.sets(st.sampled_from(EVERYTHING))


def best(mode: str, rate: float, allowed: set[str], size: int = FEATURES) -> Coding:
    return CodecChoice().best(mode, size, rate, candidates(mode, allowed, EVERYTHING))


@given(st.sampled_from(MODES), codec_sets, known_sets, st.integers(0, 1 << 26), st.floats(0, 1e9))
def test_nothing_is_used_that_is_not_allowed_or_not_known(
    mode: str, allowed: set[str], known: set[str], size: int, rate: float
) -> None:
    coding = CodecChoice().best(mode, size, rate, candidates(mode, allowed, known))
    assert coding.lossy in {"", *(allowed & known)}
    assert not coding.zstd or "zstd" in known
    assert mode in ("auto", coding.lossy) or coding == PLAIN


def test_a_fast_link_is_lossless_whatever_is_allowed() -> None:
    assert best("auto", 10_000 * MBIT, set(CODECS)) == PLAIN
    assert best("auto", 0.0, set(CODECS)) == PLAIN  # nothing slow is known


def test_a_slow_link_without_an_allowed_codec_stays_exact() -> None:
    assert best("auto", 5 * MBIT, set()).lossy == ""


@pytest.mark.parametrize("mbit", [5, 20, 100])
def test_a_slow_link_gets_the_codec_that_is_allowed(mbit: float) -> None:
    assert best("auto", mbit * MBIT, {"i8"}).lossy == "i8"


def test_of_two_allowed_codecs_the_one_with_more_loss_has_to_pay() -> None:
    assert best("auto", 5 * MBIT, {"i8", "i4"}).lossy == "i4"
    assert best("auto", 400 * MBIT, {"i8", "i4"}, 40_000).lossy in ("", "i8")


@given(st.integers(1, 1 << 26), st.floats(1e3, 1e9), codec_sets)
def test_auto_is_never_expected_to_take_longer_than_plain_bytes(
    size: int, rate: float, allowed: set[str]
) -> None:
    coding = best("auto", rate, allowed, size)
    if coding != PLAIN:
        assert size / COSTS[coding].ratio / rate < size / rate


def test_a_codec_that_does_not_make_these_features_smaller_is_left() -> None:
    choice, among = CodecChoice(), candidates("auto", set(), EVERYTHING)
    assert choice.best("auto", FEATURES, 5 * MBIT, among).name == "zstd"
    for _ in range(20):
        choice.did(Coding("", True), FEATURES, FEATURES)
    assert choice.best("auto", FEATURES, 5 * MBIT, among) == PLAIN


def test_a_named_codec_is_used_on_every_link_and_says_why_it_is_not() -> None:
    assert best("i8", 0.0, {"i8"}).name == "i8-zstd"
    assert best("i8", 0.0, {"i8"}, 2000).name == "i8"  # too small for zstd
    assert best("i8", 0.0, {"i8"}, 200) == PLAIN
    assert best("i8", 1.0, {"i4"}) == PLAIN
    assert "--allow-codec i8" in obstacle("i8", {"i4"}, EVERYTHING)
    assert "does not know" in obstacle("i8", {"i8"}, {"f16"})
    assert obstacle("i8", {"i8"}, EVERYTHING) == obstacle("auto", set(), set()) == ""


@pytest.mark.parametrize(
    ("mode", "allowed", "codec"),
    [
        ("i4", {"i8", "i4"}, "i4"),
        ("i4", {"f16", "i8"}, "i8"),
        ("i6", {"f16", "i4"}, "f16"),
        ("i8", {"i8"}, "i8"),
    ],
)
def test_results_follow_a_named_codec_as_far_as_the_owner_lets_them(
    mode: str, allowed: set[str], codec: str
) -> None:
    rule = results_rule(mode, frozenset(allowed))
    assert rule == (codec, {codec})
    assert best(rule.mode, 0.0, set(rule.allowed)).lossy == codec  # on every link


@given(st.sampled_from(CODECS), codec_sets, st.integers(0, 1 << 26), st.floats(0, 1e9))
def test_results_never_lose_more_than_the_named_codec_nor_than_the_owner_allows(
    mode: str, allowed: set[str], size: int, rate: float
) -> None:
    rule = results_rule(mode, frozenset(allowed))
    lossy = best(rule.mode, rate, set(rule.allowed), size).lossy
    assert lossy in {"", *allowed}
    assert not lossy or CODECS.index(lossy) <= CODECS.index(mode)


@pytest.mark.parametrize(("mode", "allowed"), [("i4", set[str]()), ("f16", {"i8"})])
def test_results_without_a_codec_stay_exact_and_nobody_is_told(
    mode: str, allowed: set[str]
) -> None:
    rule = results_rule(mode, frozenset(allowed))
    assert obstacle(rule.mode, rule.allowed, EVERYTHING) == ""
    assert best(rule.mode, 0.0, set(rule.allowed)) == PLAIN
    assert best(rule.mode, 5 * MBIT, set(rule.allowed)) == Coding("", True)


@given(st.sampled_from(["auto", "none"]), codec_sets)
def test_a_mode_that_names_no_codec_is_the_same_for_results(mode: str, allowed: set[str]) -> None:
    assert results_rule(mode, frozenset(allowed)) == (mode, allowed)


def test_none_is_none() -> None:
    assert best("none", 1.0, set(CODECS)) == PLAIN


def test_two_slow_links_in_a_row_are_slower_than_each() -> None:
    assert path_rate((100.0, 100.0)) == 50.0
    assert path_rate((0.0, 100.0)) == 100.0
    assert path_rate((0.0, 0.0)) == 0.0


def test_a_setting_that_is_no_codec_is_refused_with_the_ones_that_are() -> None:
    with pytest.raises(InvalidArgument, match="auto, none, f16, i8, i6, i4"):
        mode_of("i5")
