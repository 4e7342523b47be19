"""What is kept, for how long, and which questions are equal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from shards.cache.answers import ENTRY, KeptAnswer, KeptAnswers, own_copy
from shards.cache.key import MOST_INPUT, key_of
from shards.cache.part import PART, CacheBounds
from shards.errors import ManifestError

AGE, ROOM = 10.0, 4 * (ENTRY + 64)
KEYS = st.binary(min_size=1, max_size=1)


def answer(size: int, at: float) -> KeptAnswer:
    return KeptAnswer(own_copy({"y": np.full(size, 7, np.uint8)}), at)


class AgainstAList(RuleBasedStateMachine):
    """Beside it a list of what was kept, the longest unused first, judged anew at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = KeptAnswers(CacheBounds(ROOM, AGE))
        self.listed: list[tuple[bytes, KeptAnswer]] = []
        self.now = 0.0
        self.evicted = 0

    @rule(seconds=st.floats(0.0, 6.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(key=KEYS, size=st.integers(0, ROOM))
    def one_is_kept(self, key: bytes, size: int) -> None:
        made = answer(size, self.now)
        self.answers.keep(key, made)
        if made.nbytes > ROOM:
            return
        self.listed = [(k, a) for k, a in self.listed if k != key] + [(key, made)]
        while sum(a.nbytes for _, a in self.listed) > ROOM:
            self.listed.pop(0)
            self.evicted += 1

    @rule(key=KEYS)
    def one_is_asked_for(self, key: bytes) -> None:
        found = next((a for k, a in self.listed if k == key), None)
        if found is not None:
            self.listed = [(k, a) for k, a in self.listed if k != key]
            if self.now - found.at < AGE:
                self.listed.append((key, found))
            else:
                found = None
        assert self.answers.recall(key, self.now) is found

    @rule()
    def the_weights_change(self) -> None:
        self.answers.clear()
        self.listed.clear()

    @invariant()
    def as_many_bytes_as_told_and_never_too_many(self) -> None:
        assert self.answers.nbytes == sum(a.nbytes for _, a in self.listed) <= ROOM
        assert len(self.answers) == len(self.listed)
        assert self.answers.counters.evicted == self.evicted


TestAgainstAList = AgainstAList.TestCase

X = np.array([[0.0, 1.0], [2.0, 3.0]], np.float32)
BITS = X.copy()
BITS.view(np.uint32)[0, 1] ^= 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x": X}, {"x": BITS}),
        ({"x": np.zeros(2, np.float32)}, {"x": -np.zeros(2, np.float32)}),
        (
            {"x": np.array([0x7FC00000], np.uint32).view(np.float32)},
            {"x": np.array([0x7FC00001], np.uint32).view(np.float32)},
        ),
        ({"x": X}, {"x": X.view(np.int32)}),
        ({"x": np.array([1], np.int64)}, {"x": np.array([1], np.uint64)}),
        ({"x": X}, {"x": X.reshape(4)}),
        ({"x": X}, {"x": X.reshape(1, 4)}),
        ({"x": X}, {"x": X.T}),
        ({"x": X}, {"y": X}),
        ({"a": X, "b": BITS}, {"a": BITS, "b": X}),
        ({"a": X}, {"a": X, "b": X}),
        ({"a": X[:1], "b": X[1:]}, {"a": X, "b": X[2:]}),
        ({"x": np.zeros((0, 2), np.float32)}, {"x": np.zeros((2, 0), np.float32)}),
        ({"x": np.array(1, np.int32)}, {"x": np.array([1], np.int32)}),
    ],
)
def test_other_bytes_names_datatypes_and_shapes_are_other_questions(
    one: dict[str, np.ndarray], other: dict[str, np.ndarray]
) -> None:
    assert key_of(one) is not None
    assert key_of(one) != key_of(other)


def test_the_same_tensors_are_the_same_question_however_they_lie() -> None:
    laid = np.asfortranarray(X)
    assert key_of({"a": X, "b": BITS}) == key_of({"b": BITS.copy(), "a": laid})
    assert key_of({"x": X[:, ::-1]}) == key_of({"x": X[:, ::-1].copy()})


@given(st.binary(max_size=64), st.binary(max_size=64))
@settings(max_examples=200)
def test_keys_are_equal_where_the_bytes_are(one: bytes, other: bytes) -> None:
    keys = [key_of({"x": np.frombuffer(each, np.uint8)}) for each in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


def test_what_would_take_long_or_has_no_bytes_of_its_own_is_no_question() -> None:
    assert key_of({"x": np.zeros(MOST_INPUT + 1, np.uint8)}) is None
    assert key_of({"x": np.array(["a"], object)}) is None


def test_kept_tensors_are_nobody_elses() -> None:
    mine = np.ones(3, np.float32)
    kept = own_copy({"y": mine})
    mine[:] = 0
    assert kept["y"].tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        kept["y"][0] = 5


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {},
        {"bytes": 1},
        {"bytes": 0, "age_s": 1},
        {"bytes": True, "age_s": 1},
        {"bytes": 1.5, "age_s": 1},
        {"bytes": 1 << 41, "age_s": 1},
        {"bytes": 1, "age_s": 0},
        {"bytes": 1, "age_s": float("nan")},
        {"bytes": 1, "age_s": float("inf")},
        {"bytes": 1, "age_s": "1"},
        {"bytes": 1, "age_s": 1, "more": 1},
    ],
)
def test_bounds_that_are_none_are_refused_with_the_manifest(raw: object) -> None:
    with pytest.raises(ManifestError, match="cache"):
        PART.check(raw, [])
